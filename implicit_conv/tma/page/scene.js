// Convert the form to a scene: {mode, blocks, steps, buffers, outputs, facts, wrong, undrawn}. A block
// is the loads and taps of a k-block; a step is one load, one pixel of a load (`upto` pixels are there),
// or one tap; `wrong` lists the errors; `undrawn` says why there is no picture of what is right.

const PIXELS_DRAWN = 4096; // most pixels of an image that the page draws
const ROWS_DRAWN = 1024; // most rows of shared memory
const TOO_LARGE = `this page draws images of at most ${PIXELS_DRAWN} pixels`;
const $ = (id) => document.getElementById(id);
const numbers = (id) => $(id).value.split(",").map((part) => (part.trim() === "" ? NaN : Number(part)));
const checked = (name) => document.querySelector(`input[name=${name}]:checked`).value;

function readConvolution() {
  const pair = (id) => { const v = numbers(id); return v.length === 1 ? [v[0], v[0]] : v; };
  const [R, S] = pair("kernel");
  const conv = {
    N: +$("N").value, H: +$("H").value, W: +$("W").value, R, S, stride: pair("stride"),
    dilation: pair("dilation"), padLo: pair("padLo"), padHi: pair("padHi"),
    tile: +$("tileRows").value, mode: $("mode").value,
  };
  const counts = [conv.N, conv.H, conv.W, R, S, ...conv.stride, ...conv.dilation, conv.tile];
  const pairs = [conv.stride, conv.dilation, conv.padLo, conv.padHi, numbers("kernel").length === 1 ? [R, S] : numbers("kernel")];
  if (pairs.some((values) => values.length !== 2)) return { wrong: ["filter, stride, dilation and padding are one number, or two: h, w"] };
  if (counts.some((x) => !(Number.isInteger(x) && x >= 1))) return { wrong: ["sizes, taps, strides and dilations are integers of at least 1"] };
  if ([...conv.padLo, ...conv.padHi].some((x) => !Number.isInteger(x))) return { wrong: ["padding is integers: low h, w and high h, w"] };
  if (Math.max(...conv.stride) > 8) return { wrong: ["a traversal stride is at most 8"] };
  if (conv.H * conv.W > PIXELS_DRAWN) return { undrawn: TOO_LARGE };
  if (conv.tile > 1024) return { wrong: ["a load has at most 1024 rows"] };
  return { conv };
}

// A step for every pixel of every load of a block.
function pixelSteps(block, buffers) {
  return block.loads.flatMap((copy, load) => {
    const count = Math.max(...walkRows(copy, buffers[load]).map((row) => row.order)) + 1;
    return Array.from({ length: count }, (_, k) => ({ kind: "load", block: 0, load, upto: k + 1, of: count }));
  });
}

function convolutionScene() {
  const { conv, wrong, undrawn } = readConvolution();
  if (!conv) return { wrong, undrawn };
  const { P, Q } = lower({ ...conv, mode: "im2col" });
  if (P < 1 || Q < 1) return { wrong: ["the output has no pixels: the filter is larger than the padded image"] };
  const plan = lower(conv);
  $("tile").max = plan.tiles - 1;
  const tile = Math.min(Math.max(0, +$("tile").value || 0), plan.tiles - 1);
  const blocks = plan.blocks(tile);
  const steps = [];
  blocks.forEach((block, b) => {
    block.loads.forEach((_, load) => steps.push({ kind: "load", block: b, load }));
    block.taps.forEach((_, tap) => steps.push({ kind: "tap", block: b, tap }));
  });
  const bad = blocks.flatMap((block) => blockFaults(block, plan.buffers));
  const more = plan.slots - Q;
  const slots = `An image row takes L = ${plan.slots} slots: its ${Q} outputs${more ? `, and ${more} more that ${more > 1 ? "are" : "is"} dropped, `
    + "so that a shifted view never reads a neighbour where padding should be" : ""}. `;
  const facts = `Output ${P} x ${Q}. ${conv.mode === "im2col" ? "" : slots}${plan.tiles} tiles. `
    + `Tile ${tile}: ${blocks.reduce((sum, b) => sum + b.loads.length, 0)} loads feed ${blocks.reduce((sum, b) => sum + b.taps.length, 0)} taps, for each channel block.`;
  return { mode: conv.mode, conv, P, Q, blocks, steps, buffers: plan.buffers, outputs: plan.outputs(tile), facts, wrong: [...new Set(bad)],
    empty: steps.length ? "" : "Every filter row of this tile lies outside the image: nothing to load." };
}

const blockFaults = (block, buffers) => block.loads.flatMap((copy) => faults(copy, buffers));

// One copy, or one into each of several buffers; the page leaves out the last dimension of the tensor.
function copyScene() {
  const mode = $("mode").value;
  const lists = ["shape", "box", "lower", "upper", "step", "start", "offsets", "halo", "offset"];
  const { halo, offset, ...copy } = { mode, pixels: +$("pixels").value, ...Object.fromEntries(lists.map((name) => [name, numbers(name)])) };
  const [rank, tiled, im2col] = [copy.shape.length, mode === "tiled", mode === "im2col"];
  const axes = tiled ? rank : im2col ? rank - 1 : 1;
  const each = tiled ? ["step"] : ["lower", "upper", "step", ...(im2col ? ["offsets"] : [])]; // one number holds for all axes
  for (const name of each) if (copy[name].length === 1) copy[name] = Array(axes).fill(copy[name][0]);
  const wrong = [];
  if (tiled && (rank < 1 || rank > 4)) wrong.push("the tensor has one to four dimensions besides that of the rows");
  if (!tiled && (rank < 2 || rank > 4)) wrong.push("the tensor has n and one to three of d, h, w");
  for (const [name, length] of [...each.map((one) => [one, axes]), ["start", rank], ...(tiled ? [["box", axes]] : [])]) {
    if (copy[name].length !== length) wrong.push(`${name} needs ${length} numbers, row-major`);
  }
  const wide = !tiled && !im2col;
  const buffers = Array.from({ length: wide ? Math.max(halo.length, offset.length) : 1 }, (_, b) => (
    wide ? { halo: halo[b] ?? halo[0], offset: offset[b] ?? offset[0] } : { halo: 0, offset: 0 }));
  const used = [copy.shape, copy.start, ...each.map((name) => copy[name]), tiled ? copy.box : [copy.pixels], ...(wide ? [halo, offset] : [])];
  if (used.flat().some((x) => !Number.isInteger(x))) wrong.push("all entries are integers");
  if (!wrong.length) wrong.push(...faults(copy, buffers));
  const warnings = wrong.length ? [] : [...corner_suspicions(mapOf(copy))].map((f) => ` ${said(f)}.`);
  const inBox = copy.box.reduce((product, count, i) => product * ceilDiv(count, copy.step[i]), 1);
  const many = tiled && inBox > ROWS_DRAWN;
  const undrawn = many ? `this page draws boxes of at most ${ROWS_DRAWN} rows` : tooLarge(tiled ? copy.shape : copy.shape.slice(1));
  const block = { r: 0, loads: buffers.map(() => copy), taps: [] };
  const steps = wrong.length || many ? [] : pixelSteps(block, buffers);
  const walked = mode === "w128" ? `128 + 4 x ${buffers[0].halo}` : `${copy.pixels}${wide ? ` + ${buffers[0].halo}` : ""}`;
  const facts = tiled && wrong.length ? "" : `A load delivers ${tiled ? inBox : walked} rows; filled rows count too.`;
  return { mode, blocks: [block], steps, buffers, outputs: null, wrong, undrawn, warnings: warnings.join(""), facts };
}

// Why an image, the last two of these dimensions, is not drawn; empty if it is.
const tooLarge = (sizes) => (sizes.slice(-2).reduce((a, b) => a * b, 1) > PIXELS_DRAWN ? TOO_LARGE : "");

// The map in JSON: what is wrong with it, or one copy by it, which the form of a copy then holds.
function ownScene() {
  let object;
  try {
    object = JSON.parse($("json").value);
  } catch (error) {
    return { wrong: [`this is not JSON: ${error.message}`] };
  }
  if (object === null || typeof object !== "object" || Array.isArray(object)) return { wrong: ["write one object: {...}"] };
  const { m, start, found } = lintMap(object);
  if (m === null || found.some((f) => f.severity === "error")) return { wrong: found.map((f) => `${said(f)} [${f.source}]`) };
  const box = m.mode === "tiled";
  const first = start?.coords.slice(0, -1) ?? [...Array(m.shape.length - 1 - m.lower.length).fill(0), ...m.lower];
  const fields = {
    mode: m.mode, shape: m.shape.slice(0, -1), box: m.box.slice(0, -1), lower: m.lower, upper: m.upper,
    step: box ? m.step.slice(0, -1) : m.step, pixels: m.pixels, start: first,
    offsets: start?.offsets ?? m.lower.map(() => 0), halo: start?.w_halo ?? 0, offset: start?.w_offset ?? 0,
  };
  for (const [id, value] of Object.entries(fields)) $(id).value = Array.isArray(value) ? value.join(", ") : value;
  const copy = copyScene();
  const words = [found.length ? "It breaks no rule, but:" : "It breaks no rule.", ...found.map((f) => `${said(f)} [${f.source}]`), "implicit-conv lint also looks for what is legal but unlikely."];
  return { ...copy, warnings: "", facts: [copy.facts, ...words].join(" ") };
}
