// The page itself: convert the form to a scene, draw one of its steps, highlight rows and pixels.

const COLORS = 6;
const NARROW = matchMedia("(max-width: 760px)").matches;
const CELL = NARROW ? 23 : 30;
const MARGIN = NARROW ? 28 : 34; // pixels left of a plane, for its row labels
const OWN = "(own sizes)";
const PLANES_MAX = 6;
const ONE_COLUMN = 40; // rows of shared memory that are drawn below each other
const SVG = "http://www.w3.org/2000/svg";
const CONVOLUTIONS = {
  "3 x 3, stride 1, padding 1": { W: 7, kernel: "3, 3", stride: "1, 1", padLo: "1, 1", padHi: "1, 1" },
  "3 x 3, stride 2: two buffers": { W: 9, kernel: "3, 3", stride: "2, 2", padLo: "1, 1", padHi: "1, 1" },
  "3 x 3, stride 3: three buffers": { W: 7, kernel: "3, 3", stride: "3, 3", padLo: "1, 1", padHi: "1, 1" },
  "3 x 3, dilation 2": { W: 8, kernel: "3, 3", dilation: "2, 2", padLo: "2, 2", padHi: "2, 2" },
  "7 x 7, stride 2, padding 3": { H: 14, W: 14, kernel: "7, 7", stride: "2, 2", padLo: "3, 3", padHi: "3, 3" },
};
const CONV_DEFAULTS = {
  N: 4, H: 7, W: 7, kernel: "3, 3", stride: "1, 1", dilation: "1, 1", padLo: "1, 1", padHi: "1, 1",
  tileRows: 16, tile: 0,
};
const WORDS = {
  tap: "One position (r, s) of the filter. Its weights multiply one pixel for each output.",
  slot: "A place in the row of an image that a GEMM row stands for. Slots past the last output are computed and dropped.",
  L: "Slots of an image row: the outputs, and a few more, so that a shifted view never reads a neighbour where padding should be.",
  halo: "The pixels that a load takes beyond its rows, because shifted views reach that far.",
  w_halo: "How many pixels a load takes beyond its rows: its halo.",
  w_offset: "Moves the walk and its box along W: each stride phase of the taps has its own.",
  tile: "The rows (outputs) that one block computes.",
  box: "The pixels at which a filter may begin; the walk wraps at its end.",
};
const FIELDS = ["mode", "N", "H", "W", "kernel", "stride", "dilation", "padLo", "padHi", "tileRows", "tile",
  "shape", "box", "lower", "upper", "step", "pixels", "start", "offsets", "halo", "offset", "json"];
let scene = null;
let step = 0;
let active = null; // {buffer, row}
let timer = 0;

function element(tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== "") node.textContent = text;
  return node;
}

function shape(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// ---- the form ----------------------------------------------------------------------------------

function rebuild(keepStep) {
  const what = checked("what");
  const conv = what === "conv";
  if (conv && $("mode").value === "tiled") $("mode").value = "w";
  const kind = { im2col: "im2col", tiled: "tiled" }[$("mode").value] || "wide";
  $("conv").hidden = !conv;
  $("copy").hidden = what !== "copy";
  $("own").hidden = what !== "own";
  $("modes").hidden = what === "own";
  document.querySelectorAll("[data-for]").forEach((node) => { node.hidden = !node.dataset.for.split(" ").includes(kind); });
  $("tileRows").disabled = $("mode").value === "w128";
  scene = { conv: convolutionScene, copy: copyScene, own: ownScene }[what]();
  const count = scene.wrong?.length || !scene.steps ? 0 : scene.steps.length;
  if (!keepStep || !conv) step = count && scene.steps[0].upto ? scene.steps[0].of - 1 : 0; // all pixels of the first load
  step = Math.min(step, Math.max(0, count - 1));
  $("step-slider").max = Math.max(0, count - 1);
  $("step-slider").disabled = $("play").disabled = count < 2;
  const why = scene.wrong?.length || count || !scene.undrawn ? scene.wrong || [] : [scene.undrawn];
  $("faults").replaceChildren(...why.map((text) => element("li", {}, text)));
  const inferred = scene.mode === "w128" ? " Where the halos of the four groups lie is inferred, not proven." : "";
  $("facts").replaceChildren(...glossed((scene.facts || "") + (scene.warnings || "") + inferred));
  active = null;
  show();
}

// ---- one step -------------------------------------------------------------------------------

function show() {
  const usable = !scene.wrong?.length && scene.steps?.length;
  $("legend").hidden = !usable;
  $("before").hidden = scene.mode !== "im2col";
  $("previous").disabled = !usable || step === 0;
  $("next").disabled = !usable || step === scene.steps.length - 1;
  $("step-slider").value = step;
  if (!usable) {
    $("tensor").replaceChildren();
    $("memory").replaceChildren();
    $("output").replaceChildren();
    const heading = scene.wrong?.length ? "This cannot be loaded:" : "This is right, but not drawn:";
    $("says").textContent = scene.wrong?.length || scene.undrawn ? heading : scene.empty || "";
    $("ptx").textContent = $("light").textContent = "";
    return;
  }
  const now = scene.steps[step];
  const block = scene.blocks[now.block];
  const loaded = now.kind === "tap" ? block.loads.length : now.load + 1;
  const there = (row, b) => !now.upto || b < now.load || row.order < now.upto;
  const contents = block.loads.slice(0, loaded).map((copy, b) => walkRows(copy, scene.buffers[b])
    .map((row) => ({ ...row, there: there(row, b) })));
  const tap = now.kind === "tap" ? block.taps[now.tap] : null;
  const reads = tap && readsOf(tap);
  document.body.classList.toggle("tapping", !!tap);
  document.body.classList.toggle("convolving", !!scene.outputs);
  describe(now, block, contents, tap);
  if (scene.undrawn) $("tensor").replaceChildren(element("p", {}, `The tensor is not drawn: ${scene.undrawn}.`));
  else drawTensor(block, contents, now, reads);
  drawMemory(contents, now, tap, reads);
  drawOutput(now, block, tap);
  remember();
  light(active && contents[active.buffer]?.[active.row]?.there ? active : null);
}

// Row of shared memory -> the row m of the tile for which the tap reads it, and whether m is kept.
function readsOf(tap) {
  const reads = new Map();
  scene.outputs.forEach((output, m) => reads.set(viewRow(scene.mode, m, tap, scene.buffers), { m, ...output }));
  return { buffer: tap.buffer, rows: reads };
}

function describe(now, block, contents, tap) {
  const prefix = `Step ${step + 1} of ${scene.steps.length}: `;
  if (tap) {
    const view = scene.mode === "im2col" ? "row by row" : `through a view shifted by ${tap.shift} row${tap.shift === 1 ? "" : "s"}`;
    $("says").replaceChildren(...glossed(`${prefix}tap r = ${tap.r}, s = ${tap.s} reads buffer ${tap.buffer + 1} ${view}`));
    $("ptx").textContent = "no load: the rows are in shared memory already";
    return;
  }
  const buffer = scene.buffers[now.load];
  const row = checked("what") === "conv" ? `filter row r = ${block.r}, ` : "";
  const operands = wideMode() ? `, w_offset ${buffer.offset}, w_halo ${buffer.halo}` : "";
  if (now.upto && now.upto < now.of) {
    $("says").replaceChildren(...glossed(prefix + pixelWords(contents[now.load], now)));
    $("ptx").textContent = instructionOf(block.loads[now.load], buffer);
    return;
  }
  $("says").replaceChildren(...glossed(`${prefix}${row}load ${contents[now.load].length} rows into buffer ${now.load + 1}${operands}`));
  $("ptx").textContent = instructionOf(block.loads[now.load], buffer);
}

// The last pixel of a walk that is under way, and where the walk goes next.
function pixelWords(rows, now) {
  const here = rows.filter((row) => row.order === now.upto - 1);
  const next = rows.find((row) => row.order === now.upto);
  const wraps = next && scene.mode !== "tiled" && next.at.slice(0, -1).join() !== here[0].at.slice(0, -1).join();
  const what = here[0].filled ? "is outside the tensor: filled" : "is loaded";
  const where = here.map((row) => `${row.halo ? "halo " : ""}row ${row.index}`).join(" and ");
  return `pixel (${here[0].at.join(", ")}) ${what}, into ${where}${wraps ? `; the walk wraps to (${next.at.join(", ")})` : ""}`;
}

// Text with its terms explained on hover.
function glossed(text) {
  const terms = new RegExp(`\\b(${Object.keys(WORDS).join("|")})(s?)\\b`);
  const parts = [];
  for (let found = terms.exec(text); found; found = terms.exec(text)) {
    parts.push(text.slice(0, found.index), element("abbr", { title: WORDS[found[1]] }, found[0]));
    text = text.slice(found.index + found[0].length);
  }
  return [...parts, text];
}

// ---- the tensor -----------------------------------------------------------------------------

const wideMode = () => scene.mode === "w" || scene.mode === "w128";
const tiledMode = () => scene.mode === "tiled";
function planeKey(at) {
  if (wideMode()) return "";
  return at.slice(0, tiledMode() ? Math.max(0, at.length - 2) : Math.max(1, at.length - 2)).join(",");
}
function cellOf(at) {
  if (wideMode()) return [at[0], at[at.length - 1]];
  return [at.length > (tiledMode() ? 1 : 2) ? at[at.length - 2] : 0, at[at.length - 1]];
}

function drawTensor(block, contents, now, reads) {
  const copy = block.loads[0];
  const planes = new Map();
  contents.forEach((rows, buffer) => rows.forEach((row) => {
    const key = planeKey(row.at);
    if (!planes.has(key)) planes.set(key, new Map());
    if (!row.there) return;
    const cell = cellOf(row.at).join(",");
    if (!planes.get(key).has(cell)) planes.get(key).set(cell, []);
    planes.get(key).get(cell).push({ ...row, buffer });
  }));
  const letters = tiledMode() ? "0123" : copy.shape.length === 4 ? "nd" : "n";
  const order = [...planes.keys()].map((k) => k.split(",").map(Number)).sort((a, b) => a[0] - b[0] || (a[1] ?? 0) - (b[1] ?? 0)).map((k) => k.join(","));
  const keys = planes.has("") || wideMode() ? [""] : order;
  const shown = keys.length > PLANES_MAX ? [...keys.slice(0, PLANES_MAX - 1), keys[keys.length - 1]] : keys;
  const area = areaOf(copy, planes);
  $("tensor").replaceChildren(...shown.map((key, i) => {
    let title = key === "" ? "tensor" : key.split(",").map((x, j) => `${letters[j]} = ${x}`).join(", ");
    if (wideMode()) title = `Images, at ${copy.start.slice(1, -1).map((x, j) => `${"dh".slice(-(copy.start.length - 2))[j]} = ${x}`).join(", ") || "one row each"}`;
    if (i && i === shown.length - 1 && shown.length < keys.length) title += ` (after ${keys.length - shown.length} more)`;
    return planeFigure(title, planes.get(key), area, copy, now, reads);
  }));
  $("panels").classList.toggle("below", area.across > 24);
}

function areaOf(copy, planes) {
  const cells = [...planes.values()].flatMap((plane) => [...plane.keys()].map((key) => key.split(",").map(Number)));
  const W = copy.shape[copy.shape.length - 1];
  if (tiledMode()) return tileArea(copy);
  const boxes = scene.buffers.map(({ offset }) => {
    const at = wideMode() ? offset : 0;
    const i = copy.lower.length - 1;
    return { left: copy.lower[i] + at, right: W - 1 + copy.upper[i] + at };
  });
  const flat = wideMode() || copy.shape.length === 2;
  const H = flat ? 1 : copy.shape[copy.shape.length - 2];
  const i = copy.lower.length - 2;
  const [boxTop, boxBottom] = flat ? [0, 0] : [copy.lower[i], H - 1 + copy.upper[i]];
  const ys = cells.map(([y]) => y);
  const xs = [0, W - 1, ...cells.map(([, x]) => x), ...boxes.flatMap((box) => [box.left, box.right])];
  const rows = wideMode() ? ys : [0, H - 1, boxTop, boxBottom, ...ys];
  const [top, bottom, left] = [Math.min(...rows), Math.max(...rows), Math.min(...xs)];
  return { top, down: bottom - top + 1, left, across: Math.max(...xs) - left + 1, boxes, boxTop, boxBottom,
    H: wideMode() ? copy.shape[0] : H, W };
}

// The area of a tiled copy: the plane of the tensor and of the box.
function tileArea(copy) {
  const end = (values) => values[values.length - 1];
  const flat = copy.shape.length < 2;
  const [H, W] = [flat ? 1 : copy.shape[copy.shape.length - 2], end(copy.shape)];
  const last = (i) => copy.start[i] + (ceilDiv(copy.box[i], copy.step[i]) - 1) * copy.step[i];
  const i = copy.shape.length - 1;
  const [boxTop, boxBottom] = flat ? [0, 0] : [copy.start[i - 1], last(i - 1)];
  const box = { left: copy.start[i], right: last(i) };
  const [top, left] = [Math.min(0, boxTop), Math.min(0, box.left)];
  return { top, down: Math.max(H - 1, boxBottom) - top + 1, left, across: Math.max(W - 1, box.right) - left + 1,
    boxes: [box], boxTop, boxBottom, H, W };
}

function planeFigure(title, marks, area, copy, now, reads) {
  const svg = shape("svg", { width: MARGIN + area.across * CELL + 4, height: 22 + area.down * CELL + 4, role: "img", "aria-label": title });
  svg.append(hatches());
  const put = (x, y, text, name = "axis") => { const node = shape("text", { x, y, class: name }); node.textContent = text; svg.append(node); };
  put(MARGIN / 2, 11, wideMode() ? "n \\ w" : tiledMode() ? "" : "h \\ w");
  for (let i = 0; i < area.across; i++) put(MARGIN + (i + 0.5) * CELL, 11, area.left + i);
  for (let j = 0; j < area.down; j++) {
    const y = area.top + j;
    put(MARGIN / 2, 22 + (j + 0.5) * CELL, y);
    for (let i = 0; i < area.across; i++) {
      const x = area.left + i;
      const exists = y >= 0 && y < area.H && x >= 0 && x < area.W;
      svg.append(cellGroup(MARGIN + i * CELL, 22 + j * CELL, exists, marks?.get(`${y},${x}`) || [], now, reads));
    }
  }
  const single = area.boxes.length === 1 || now.kind === "load";
  area.boxes.forEach((box, b) => {
    if (now.kind === "load" && b !== now.load) return;
    const [y0, y1] = wideMode() ? [area.top, area.top + area.down - 1] : [area.boxTop, area.boxBottom];
    const inset = single ? 0 : 2 * b;
    svg.append(shape("rect", {
      x: MARGIN + (box.left - area.left) * CELL + inset, y: 22 + (y0 - area.top) * CELL + inset,
      width: (box.right - box.left + 1) * CELL - 2 * inset, height: (y1 - y0 + 1) * CELL - 2 * inset,
      class: "bounds", stroke: area.boxes.length === 1 ? "var(--ink)" : `var(--b${b % COLORS})`,
    }));
  });
  const figure = element("figure");
  figure.append(element("figcaption", {}, title), svg);
  return figure;
}

function hatches() {
  const defs = shape("defs", {});
  for (let b = 0; b < COLORS; b++) {
    const pattern = shape("pattern", { id: `hatch${b}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    pattern.append(shape("rect", { width: 6, height: 6, fill: "var(--paper)" }), shape("rect", { width: 1.6, height: 6, fill: `var(--b${b})`, opacity: 0.55 }));
    defs.append(pattern);
  }
  return defs;
}

function cellGroup(x, y, exists, marks, now, reads) {
  const group = shape("g", { class: "cell" });
  const square = (inset, attributes) => shape("rect", { x: x + inset, y: y + inset, width: CELL - 2 * inset, height: CELL - 2 * inset, ...attributes });
  if (exists) group.append(square(0, { fill: "var(--pixel)", stroke: "var(--line)" }));
  if (!marks.length) return group;
  const mark = marks.find((m) => (reads ? m.buffer === reads.buffer : m.buffer === now.load)) || marks[marks.length - 1];
  const color = `var(--b${mark.buffer % COLORS})`;
  const read = reads && marks.filter((m) => m.buffer === reads.buffer && reads.rows.has(m.index));
  const kept = read?.some((m) => reads.rows.get(m.index).kept);
  const dropped = read?.length && !kept;
  const paint = mark.filled ? `url(#hatch${mark.buffer % COLORS})` : dropped ? "var(--gone)" : `color-mix(in srgb, ${color} var(--tint), var(--paper))`;
  group.append(square(1.5, { fill: paint, stroke: dropped ? "var(--faint)" : color }));
  if (marks.some((m) => m.halo)) group.append(square(3.5, { class: "halo-frame" }));
  if (mark.filled) group.append(shape("rect", { x: x + 5, y: y + 8, width: CELL - 10, height: CELL - 16, fill: "var(--paper)" }));
  const text = shape("text", { x: x + CELL / 2, y: y + CELL / 2 });
  text.textContent = mark.order;
  group.append(text, square(2, { class: "frame" }));
  if (reads ? !read.length : marks.every((m) => m.buffer !== now.load)) group.classList.add("faded");
  group.dataset.rows = marks.map((m) => `${m.buffer}:${m.index}`).join(" ");
  return group;
}

// ---- shared memory --------------------------------------------------------------------------

function drawMemory(contents, now, tap, reads) {
  $("memory").replaceChildren(...contents.map((rows, b) => {
    const section = element("section", { class: "buffer", style: `--c: var(--b${b % COLORS}); --row: ${tap ? 150 : 118}px` });
    const single = rows.length <= ONE_COLUMN && !NARROW;
    if (tap && b !== tap.buffer) section.classList.add("faded");
    if (!single) section.classList.add("long");
    $("panels").classList.toggle("long", !single);
    const { offset, halo } = scene.buffers[b];
    const operands = wideMode() ? `: w_offset ${offset}, w_halo ${halo}` : "";
    const list = element("div", { class: single ? "rows single" : "rows" });
    list.append(...rows.map((row) => memoryRow(row, b, tap && b === tap.buffer ? reads : null, tap)));
    section.append(element("h2", { style: `color: color-mix(in srgb, var(--b${b % COLORS}) 45%, var(--ink))` }, `Buffer ${b + 1}${operands}`), list);
    return section;
  }));
}

function memoryRow(row, buffer, reads, tap) {
  const node = element("div", { class: "row", "data-row": `${buffer}:${row.index}`, "data-at": row.at.join(","), "data-filled": row.filled });
  const use = reads?.rows.get(row.index);
  node.classList.toggle("waiting", !row.there);
  if (use) node.dataset.m = use.m;
  node.classList.toggle("filled", row.filled);
  node.classList.toggle("halo", row.halo);
  node.classList.toggle("unread", !!reads && !use);
  node.classList.toggle("dropped", !!use && !use.kept);
  node.append(element("span", { class: "index" }, row.index));
  if (tap) node.append(element("span", { class: "output" }, use ? `m${use.m}` : ""));
  const at = element("span", { class: "at" });
  at.append(element("span", {}, row.at.join(", ")));
  node.append(at);
  return node;
}

// ---- the filter and the outputs -----------------------------------------------------------------

function drawOutput(now, block, tap) {
  if (!scene.outputs) { $("output").replaceChildren(); return; }
  const { R, S } = scene.conv;
  const filter = grid("Filter: taps (r, s)", R, S, "r \\ s", 0, (r, s) => {
    const found = block.taps.find((one) => one.r === r && one.s === s);
    if (!found) return { text: "", name: "exists" };
    const fed = tap ? found.buffer === tap.buffer : found.buffer === now.load;
    return { text: `+${found.shift}`, name: found === tap ? "tapped" : fed ? "fed" : "exists" };
  });
  const places = new Map(scene.outputs.map(({ at, kept }, m) => [at.join(","), { m, kept }]));
  const at = scene.outputs[0].at;
  const slots = wideMode() ? Math.max(...scene.outputs.map((o) => o.at[2])) + 1 : scene.Q;
  const images = [...new Set(scene.outputs.filter((o) => o.kept).map((o) => o.at[0]))];
  const cell = (n, p, q) => {
    const found = places.get([n, p, q].join(","));
    if (!found) return { text: "", name: q < scene.Q ? "exists" : "none" };
    return { text: found.m, name: found.kept ? "own" : "dropped", m: found.m };
  };
  const figures = wideMode()
    ? [grid(`Output row p = ${at[1]}: m of the tile at image n, slot q`, images.length, slots, "n \\ q", images[0], (i, q) => cell(images[i], at[1], q))]
    : images.slice(0, 3).map((n) => grid(`Output of image ${n}: m of the tile`, scene.P, scene.Q, "p \\ q", 0, (p, q) => cell(n, p, q)));
  $("output").replaceChildren(filter, ...figures);
}

function grid(title, down, across, corner, first, cell) {
  const size = 24;
  const svg = shape("svg", { width: MARGIN + across * size + 2, height: 20 + down * size + 2, role: "img", "aria-label": title });
  const put = (x, y, text, name) => { const node = shape("text", { x, y, class: name }); node.textContent = text; return node; };
  svg.append(put(MARGIN / 2, 10, corner, "axis"));
  for (let x = 0; x < across; x++) svg.append(put(MARGIN + (x + 0.5) * size, 10, x, "axis"));
  for (let y = 0; y < down; y++) {
    svg.append(put(MARGIN / 2, 20 + (y + 0.5) * size, first + y, "axis"));
    for (let x = 0; x < across; x++) {
      const { text, name, m } = cell(y, x);
      const group = shape("g", { class: `out ${name}` });
      if (m !== undefined) group.dataset.m = m;
      group.append(shape("rect", { x: MARGIN + x * size + 1, y: 20 + y * size + 1, width: size - 2, height: size - 2 }),
        put(MARGIN + (x + 0.5) * size, 20 + (y + 0.5) * size, text, ""));
      svg.append(group);
    }
  }
  const figure = element("figure");
  const holder = element("div", { class: "scroll" });
  holder.append(svg);
  figure.append(element("figcaption", {}, title), holder);
  return figure;
}

// ---- highlights -----------------------------------------------------------------------------

function light(target) {
  active = target;
  document.querySelectorAll(".lit").forEach((node) => node.classList.remove("lit"));
  if (!target) { $("light").textContent = ""; return; }
  const key = `${target.buffer}:${target.row}`;
  const row = document.querySelector(`[data-row="${key}"]`);
  row?.classList.add("lit");
  for (const cell of document.querySelectorAll(".cell[data-rows]")) {
    if (cell.dataset.rows.split(" ").includes(key)) cell.classList.add("lit");
  }
  if (row?.dataset.m !== undefined) document.querySelector(`.out[data-m="${row.dataset.m}"]`)?.classList.add("lit");
  if (!row) return;
  const what = row.classList.contains("filled") ? "filled" : "loaded";
  const halo = (row.classList.contains("halo") ? ", halo" : "") + (row.dataset.m === undefined ? "" : `; this tap reads it for row m${row.dataset.m} of the tile`);
  $("light").textContent = `Buffer ${target.buffer + 1}, row ${target.row} is pixel (${row.dataset.at.replaceAll(",", ", ")}), ${what}${halo}`;
}

const parseKey = (key) => { const [buffer, row] = key.split(":").map(Number); return { buffer, row }; };

function pointed(event) {
  const row = event.target.closest?.("[data-row]:not(.waiting)");
  const cell = event.target.closest?.(".cell[data-rows]");
  if (row) light(parseKey(row.dataset.row));
  else if (cell) light(parseKey(cell.dataset.rows.split(" ")[0]));
}

function arrow(event) {
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  const rows = [...document.querySelectorAll("[data-row]:not(.waiting)")];
  if (!rows.length || !(event.key in moves || event.key === "Home" || event.key === "End" || event.key === "Escape")) return;
  event.preventDefault();
  if (event.key === "Escape") { light(null); return; }
  const at = active ? rows.findIndex((node) => node.dataset.row === `${active.buffer}:${active.row}`) : -1;
  const to = event.key === "Home" ? 0 : event.key === "End" ? rows.length - 1 : Math.min(rows.length - 1, Math.max(0, at + moves[event.key]));
  light(parseKey(rows[to].dataset.row));
  for (const node of document.querySelectorAll(".lit")) node.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// ---- controls -------------------------------------------------------------------------------

function go(to) {
  step = Math.min(Math.max(0, to), scene.steps.length - 1);
  show();
}

function play(on) {
  clearInterval(timer);
  timer = 0;
  const pause = scene.steps?.[0]?.upto ? 250 : 900; // milliseconds; a pixel takes less than a load
  if (on) timer = setInterval(() => (step < scene.steps.length - 1 ? go(step + 1) : play(false)), pause);
  const first = scene.steps?.[0];
  if (on && (step === scene.steps.length - 1 || (first?.upto && step === first.of - 1))) go(0);
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", String(on));
}

function choose(name) {
  $("preset").value = name;
  if (name in CONVOLUTIONS) {
    document.querySelector("input[name=what][value=conv]").checked = true;
    if (!["w", "w128", "im2col"].includes($("mode").value)) $("mode").value = "w";
    for (const [id, value] of Object.entries({ ...CONV_DEFAULTS, ...CONVOLUTIONS[name] })) $(id).value = value;
    $("tile").value = fullTile();
  } else {
    const example = EXAMPLES.find((entry) => entry.title === name);
    document.querySelector("input[name=what][value=copy]").checked = true;
    $("mode").value = example.mode;
    for (const [id, value] of Object.entries(example.fields)) $(id).value = value;
  }
  rebuild(false);
}

// The first tile of the convolution in the form none of whose filter rows is padding.
function fullTile() {
  const { conv } = readConvolution();
  const plan = lower(conv);
  const tiles = Array.from({ length: Math.min(plan.tiles, 64) }, (_, tile) => tile);
  return Math.max(0, tiles.findIndex((tile) => plan.blocks(tile).length >= conv.R));
}

// ---- the address: what is seen, to be shared ------------------------------------------------------

function remember() {
  const own = $("preset").value === OWN;
  const entries = own ? [["what", checked("what")], ...FIELDS.map((id) => [id, $(id).value])] : [["show", $("preset").value], ["mode", $("mode").value]];
  history.replaceState(null, "", `#${new URLSearchParams([...entries, ["at", step + 1]])}`);
}

// Restore what the address says; returns whether it says anything.
function recall() {
  const said = new URLSearchParams(location.hash.slice(1));
  const names = [...$("preset").options].map((option) => option.value);
  if (names.includes(said.get("show")) && said.get("show") !== OWN) {
    if (said.get("show") in CONVOLUTIONS && said.has("mode")) $("mode").value = mode_of(said.get("mode"));
    choose(said.get("show"));
  } else if (["conv", "copy", "own"].includes(said.get("what"))) {
    document.querySelector(`input[name=what][value=${said.get("what")}]`).checked = true;
    for (const id of FIELDS) if (said.has(id)) $(id).value = said.get(id);
    $("preset").value = OWN;
    rebuild(false);
  } else return false;
  if (scene.steps?.length && said.has("at")) go(Number(said.get("at")) - 1 || 0);
  return true;
}

function begin() {
  const groups = [["Convolutions", Object.keys(CONVOLUTIONS)], ["From the PTX documentation", EXAMPLES.map((e) => e.title)]];
  for (const [label, names] of groups) {
    const group = element("optgroup", { label });
    group.append(...names.map((name) => element("option", {}, name)));
    $("preset").append(group);
  }
  $("preset").append(element("option", { hidden: "" }, OWN));
  $("settings").open = !NARROW;
  $("words").open = matchMedia("(min-width: 1400px)").matches;
  $("preset").addEventListener("change", () => choose($("preset").value));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("controls").addEventListener("input", (event) => {
    if (event.target.id === "preset") return;
    $("preset").value = OWN;
    play(false);
    rebuild(true);
  });
  $("previous").addEventListener("click", () => go(step - 1));
  $("next").addEventListener("click", () => go(step + 1));
  $("play").addEventListener("click", () => play(!timer));
  $("step-slider").addEventListener("input", () => go(+$("step-slider").value));
  for (const panel of [$("tensor"), $("memory")]) {
    panel.addEventListener("pointerover", pointed);
    panel.addEventListener("click", pointed);
    panel.addEventListener("keydown", arrow);
  }
  document.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target.closest("input, select, summary") || scene.wrong?.length) return;
    event.preventDefault();
    go(step + by);
  });
  for (const [word, meaning] of Object.entries(WORDS)) $("words").lastElementChild.append(element("dt", {}, word), element("dd", {}, meaning));
  if (!recall()) choose(Object.keys(CONVOLUTIONS)[0]);
}

begin();
