// The rules of implicit_conv/tma/maps/rules.py, and the driver's arguments as driver.py reads them, for a
// map in JSON; tests/tma/test_page_rules.py compares the findings. LIMITS has the numbers and names
// of limits.py and driver.py. A description has the fields of Python's; a finding is {field, value,
// allowed, source, warning}.

const within = (low, high) => `must be in [${low}, ${high}]`;
const inside = (x, low, high) => low <= x && x <= high;
const isTiled = (m) => m.mode === "tiled";
const callOf = (m) => `CUDA driver API, ${LIMITS.functions[m.mode]}`;
const spatialLetters = (rank) => "dhw".slice(5 - rank);
const dimsOf = (m) => [...(isTiled(m) ? "01234".slice(0, m.shape.length) : `n${spatialLetters(m.shape.length)}c`)];
const lettersOf = (m) => (isTiled(m) ? "" : isWide(m) ? "w" : spatialLetters(m.shape.length));
const sizesOf = (m) => (isTiled(m) ? [] : isWide(m) ? m.shape.slice(-2, -1) : m.shape.slice(1, -1));
const spanOf = (m) => LIMITS.spans[m.swizzle] || 0;

// Every rule that a map breaks.
function mapFindings(m) {
  const found = [];
  const say = (field, value, allowed, source = callOf(m)) => found.push({ field, value, allowed, source });
  const rank = m.shape.length;
  if (!(isTiled(m) ? LIMITS.tiledRanks : LIMITS.ranks).includes(rank)) {
    if (isTiled(m)) say("shape", m.shape, "must have 1 to 5 dimensions");
    else say("shape", m.shape, "must have 3, 4 or 5 dimensions: (n, [d,] h, w, c) from NWC to NDHWC", "PTX ISA 5.5.4");
    return found;
  }
  const dims = dimsOf(m);
  m.shape.forEach((size, i) => {
    if (!inside(size, 1, LIMITS.sizeMax)) say(`shape[${dims[i]}]`, size, within(1, LIMITS.sizeMax));
  });
  if (!LIMITS.itemsizes.includes(m.itemsize)) {
    say("dtype", `${m.itemsize} bytes`, `elements must have one of ${LIMITS.itemsizes.join(", ")} bytes`);
  }
  if (isTiled(m)) boxRules(m, dims, say);
  else {
    cornerRules(m, say);
    walkRules(m, say);
  }
  layoutRules(m, say);
  if (isTiled(m) && m.interleave !== "none" && rank < 3) {
    say("interleave", m.interleave, `must be none for a tensor of ${rank} dimensions; 3 are needed`);
  }
  memoryRules(m, dims, say);
  return found;
}

function cornerRules(m, say) {
  const [rank, axes, sizes] = [m.shape.length, lettersOf(m), sizesOf(m)];
  const bits = isWide(m) ? 16 : LIMITS.cornerBits[rank];
  const source = isWide(m) ? callOf(m) : LIMITS.sources.CORNERS;
  const [low, high] = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1];
  const wrong = new Set();
  let lengths = true;
  for (const [name, corner] of [["lower_corner", m.lower], ["upper_corner", m.upper]]) {
    if (corner.length !== sizes.length) {
      lengths = false;
      say(name, corner, `must have ${sizes.length} entries (${axes})`, source);
    } else {
      corner.forEach((value, i) => {
        if (inside(value, low, high)) return;
        wrong.add(i);
        say(`${name}[${axes[i]}]`, value, `${within(low, high)} ${isWide(m) ? "at every rank" : `for a ${rank}-D tensor`}`, source);
      });
    }
  }
  if (!lengths) return;
  sizes.forEach((size, i) => {
    const [lower, upper] = [m.lower[i], m.upper[i]];
    if (wrong.has(i) || lower <= size - 1 + upper) return;
    const [which, value] = lower > 0 && upper >= 0 ? ["lower_corner", lower] : ["upper_corner", upper];
    const empty = `box [${lower}, ${size - 1 + upper}] is empty: lower must be <= size - 1 + upper`;
    say(`${which}[${axes[i]}]`, value, empty, isWide(m) ? LIMITS.sources.WIDE : LIMITS.sources.CORNERS);
  });
}

// Steps, pixels and channels of a walk.
function walkRules(m, say) {
  const [axes, count] = [lettersOf(m), sizesOf(m).length];
  if (m.step.length !== count) say("traversal_stride", m.step, `must have ${count} entries (${axes})`);
  else {
    m.step.forEach((step, i) => {
      if (!inside(step, 1, LIMITS.stepMax)) say(`traversal_stride[${axes[i]}]`, step, within(1, LIMITS.stepMax));
    });
  }
  if (m.mode !== "w128" && !inside(m.pixels, 1, LIMITS.pixelsMax)) {
    say("pixels_per_column", m.pixels, within(1, LIMITS.pixelsMax));
  }
  if (!inside(m.channels, 1, LIMITS.channelsMax)) {
    say("channels_per_pixel", m.channels, within(1, LIMITS.channelsMax));
  } else rowRule(m, m.channels, "channels_per_pixel", say);
}

// The bytes of a row of shared memory.
function rowRule(m, count, field, say) {
  const [bytes, span] = [count * m.itemsize, spanOf(m)];
  if (bytes % 16) say(field, count, `its ${bytes} bytes must be a multiple of 16`);
  else if (span && bytes > span) say(field, count, `its ${bytes} bytes must fit in the swizzle span of ${span} bytes`);
}

function boxRules(m, dims, say) {
  const rank = m.shape.length;
  if (m.box.length !== rank) say("box", m.box, `must have ${rank} entries, one a dimension`);
  else {
    m.box.forEach((count, i) => {
      if (!inside(count, 1, LIMITS.boxMax)) say(`box[${dims[i]}]`, count, within(1, LIMITS.boxMax));
    });
    const inner = m.box[rank - 1];
    if (inside(inner, 1, LIMITS.boxMax) && m.interleave === "none") rowRule(m, inner, `box[${dims[rank - 1]}]`, say);
  }
  if (m.step.length !== rank) say("step", m.step, `must have ${rank} entries, one a dimension`);
  else {
    m.step.forEach((step, i) => {
      if (!inside(step, 1, LIMITS.stepMax)) say(`step[${dims[i]}]`, step, within(1, LIMITS.stepMax));
    });
  }
}

function layoutRules(m, say) {
  const swizzles = LIMITS.swizzles[m.mode];
  if (!swizzles.includes(m.swizzle)) {
    const documented = isWide(m) && ["none", "128B_ATOM_32B_FLIP_8B"].includes(m.swizzle);
    const allowed = `must be one of ${swizzles.join(", ")} for mode ${m.mode}`;
    say("swizzle", m.swizzle, allowed, documented ? LIMITS.sources.WIDE : callOf(m));
  }
  if (!LIMITS.fills.includes(m.oob_fill)) say("oob_fill", m.oob_fill, `must be one of ${LIMITS.fills.join(", ")}`);
  else if (m.oob_fill === "nan" && !m.floating) say("oob_fill", m.oob_fill, "NaN exists only in floating-point types");
  const interleaves = Object.keys(LIMITS.interleaves);
  if (!interleaves.includes(m.interleave)) say("interleave", m.interleave, `must be one of ${interleaves.join(", ")}`);
  else if (isWide(m) && m.interleave !== "none") say("interleave", m.interleave, "must be none");
  else if (m.interleave === "32B" && m.swizzle !== "32B") say("swizzle", m.swizzle, "must be 32B if interleave is 32B");
}

// Byte strides of a packed tensor; an interleaved one is (n, slice, [d,] h, w, c).
function packedStrides(m) {
  const pixel = m.itemsize * m.shape[m.shape.length - 1];
  const unit = ["16B", "32B"].includes(m.interleave) ? LIMITS.interleaves[m.interleave] : pixel;
  const strides = [unit];
  for (const size of m.shape.slice(1, -1).reverse()) strides.unshift(strides[0] * size);
  if (unit !== pixel) strides[0] *= Math.ceil(pixel / unit);
  return strides.slice(0, m.shape.length - 1);
}

function memoryRules(m, dims, say) {
  const [rank, unit] = [m.shape.length, LIMITS.interleaves[m.interleave] || 16];
  if (m.address !== null && (mod(m.address, unit) || !(inside(m.address, 0, 2 ** 64) && m.address < 2 ** 64))) {
    say("address", m.address, `must be a multiple of ${unit} bytes, below 2^64`);
  }
  const strides = m.strides ?? packedStrides(m);
  if (strides.length !== rank - 1) {
    say("strides", strides, `must have ${rank - 1} entries (${dims.slice(0, -1).join("")}); channels are contiguous`);
    return;
  }
  const pixel = m.shape[rank - 1] * m.itemsize;
  if (m.strides === null && rank > 1 && mod(pixel, unit)) {
    say(`shape[${dims[rank - 1]}]`, m.shape[rank - 1], `a packed pixel of ${pixel} bytes must be a multiple of ${unit}`);
  }
  strides.forEach((stride, i) => {
    if (m.strides !== null && mod(stride, unit)) {
      say(`strides[${dims[i]}]`, stride, `bytes from one ${dims[i]} to the next must be a multiple of ${unit}`);
    } else if (!(0 <= stride && stride < 2 ** 40)) say(`strides[${dims[i]}]`, stride, "bytes must be in [0, 2^40)");
  });
}

// Every rule that a load breaks, whose map breaks none.
function startFindings(m, start) {
  const [found, dims, rank, S] = [[], dimsOf(m), m.shape.length, LIMITS.sources];
  const say = (field, value, allowed, source) => found.push({ field, value, allowed, source });
  if (start.coords.length !== rank) {
    say("coords", start.coords, `must have ${rank} entries (${dims.join(", ")})`, S.COORDS);
    return found;
  }
  start.coords.forEach((x, i) => {
    if (!inside(x, -(2 ** 31), 2 ** 31 - 1)) say(`coords[${dims[i]}]`, x, "must be a signed 32-bit integer", S.COORDS);
  });
  const given = start.offsets && start.offsets.some((x) => x);
  if (isTiled(m)) {
    if (start.offsets?.length) say("offsets", start.offsets, "must be left out: a box has none", S.HALO);
    for (const name of ["w_halo", "w_offset"]) {
      if (start[name]) say(name, start[name], "must be left out: a box has none", S.HALO);
    }
  } else if (isWide(m)) {
    const [w, last] = [start.coords[rank - 2], sizesOf(m)[0] - 1 + m.upper[0]];
    if (w > last) say("coords[w]", w, `must not be right of the box [${m.lower[0]}, ${last}]`, S.WIDE);
    if (given) say("offsets", start.offsets, "must be zero: im2col::w takes w_halo and w_offset instead", S.HALO);
    for (const [name, end] of [["w_halo", HALO_END[m.mode]], ["w_offset", W_OFFSET_END]]) {
      if (!inside(start[name], 0, end - 1)) say(name, start[name], within(0, end - 1), S.HALO);
    }
  } else im2colStart(m, start, say);
  if (mod(start.dst, 128) || !inside(start.dst, 0, 2 ** 32 - 1)) {
    say("dst", start.dst, "must be a multiple of 128 bytes, below 2^32", S.SMEM);
  }
  return found;
}

function im2colStart(m, start, say) {
  const [axes, sizes, rank, S] = [lettersOf(m), sizesOf(m), m.shape.length, LIMITS.sources];
  sizes.forEach((size, i) => {
    const [x, last] = [start.coords[i + 1], size - 1 + m.upper[i]];
    if (!inside(x, m.lower[i], last)) say(`coords[${axes[i]}]`, x, `must start inside the box [${m.lower[i]}, ${last}]`, S.CORNERS);
  });
  const top = 2 ** LIMITS.offsetBits[rank] - 1;
  if (start.offsets && start.offsets.length !== sizes.length) {
    say("offsets", start.offsets, `must have ${sizes.length} entries (${axes})`, S.OFFSETS);
  } else {
    (start.offsets || []).forEach((x, i) => {
      if (!inside(x, 0, top)) say(`offsets[${axes[i]}]`, x, `${within(0, top)} for a ${rank}-D tensor`, S.OFFSETS);
    });
  }
  for (const name of ["w_halo", "w_offset"]) {
    if (start[name]) say(name, start[name], "must be 0: only im2col::w has it", S.HALO);
  }
}

// ---- the driver's arguments, fastest-first --------------------------------------------------------

function enumName(argument, value) {
  const { infix, names } = LIMITS.enums[argument];
  const at = Object.entries(names).findIndex(([ours, theirs], number) => value === number
    || [ours, theirs, `${LIMITS.prefix}${infix}${theirs}`].includes(value));
  return at < 0 ? null : Object.keys(names)[at];
}

function dataType(value) {
  const plain = String(value).replace(`${LIMITS.prefix}DATA_TYPE_`, "");
  return Object.entries(LIMITS.dataTypes).find(([name, [number]]) => value === number || plain === name)?.[1];
}

// {m, found, name}: the description (null if too little can be read), findings, the names of fields.
function readDriver(given) {
  const kind = "boxDim" in given ? "tiled" : LIMITS.widthNames.some((n) => n in given) ? "w" : "im2col";
  const source = `CUDA driver API, ${LIMITS.functions[kind]}`;
  const found = [];
  const say = (field, value, allowed, warning = false) => found.push({ field, value, allowed, source, warning });
  const missing = LIMITS.needed[kind].filter((n) => !(n in given));
  missing.forEach((n) => say(n, null, "is missing"));
  for (const n of LIMITS.foreign[kind].filter((x) => x in given)) {
    say(n, given[n], `is of another call than ${LIMITS.functions[kind]}; give the arguments of one`);
  }
  if (missing.length) return { m: null, found, name: (field) => field };
  const a = { globalStrides: [], ...given };
  const before = found.length;
  lengthRules(a, kind, say);
  const bad = found.slice(before).some((f) => f.field === "globalDim");
  const names = {};
  for (const [argument, { infix, names: all }] of Object.entries(LIMITS.enums)) {
    const first = Object.keys(all)[0];
    names[argument] = enumName(argument, a[argument] ?? first);
    if (names[argument] === null) {
      say(argument, a[argument], `must be ${LIMITS.prefix}${infix}* (${Object.keys(all).join(", ")})`);
      names[argument] = first;
    }
  }
  const type = dataType(a.tensorDataType);
  if (!type) say("tensorDataType", a.tensorDataType, "must be a CUtensorMapDataType, 0 to 15");
  if ((a.tensorMap ?? 0) % 64) say("tensorMap", a.tensorMap, "must be 64-byte aligned");
  if (bad) return { m: null, found, name: (field) => field };
  const turned = (values) => [...values].reverse();
  const steps = a.elementStrides.length === a.globalDim.length ? a.elementStrides : a.globalDim.map(() => 1);
  const m = {
    mode: kind === "w" ? names.mode : kind, shape: turned(a.globalDim), itemsize: type ? type[1] : 1,
    floating: type ? type[2] : true, swizzle: names.swizzle, oob_fill: names.oobFill, interleave: names.interleave,
    strides: turned(a.globalStrides), address: a.globalAddress ?? null, box: [], lower: [], upper: [],
    pixels: a.pixelsPerColumn, channels: a.channelsPerPixel,
  };
  if (kind === "tiled") Object.assign(m, { box: turned(a.boxDim), step: turned(steps), pixels: 1, channels: 1 });
  else if (kind === "w") {
    const [lower, upper] = LIMITS.widthNames.map((n) => [a[n]]);
    Object.assign(m, { lower, upper, step: steps.slice(1, 2) });
  } else {
    const [lower, upper] = LIMITS.cornerNames.map((n) => turned(a[n]));
    Object.assign(m, { lower, upper, step: turned(steps.slice(1, -1)) });
  }
  return { m, found, name: driverName(m) };
}

// Arrays whose length does not suit the rank, and steps of dimensions that do not step.
function lengthRules(a, kind, say) {
  const [dims, steps] = [a.globalDim, a.elementStrides];
  const ranks = kind === "tiled" ? LIMITS.tiledRanks : LIMITS.ranks;
  const [least, most] = [ranks[0], ranks[ranks.length - 1]];
  const implied = [a.globalStrides.length + 1, steps.length];
  if (kind === "im2col") implied.push(...LIMITS.cornerNames.map((n) => a[n].length + 2));
  const agreed = implied.every((count) => count === dims.length);
  if (agreed && !ranks.includes(dims.length)) {
    say("globalDim", dims, `rank ${dims.length} must be in [${least}, ${most}]`);
    return;
  }
  let rank = a.tensorRank ?? dims.length;
  if (agreed && rank !== dims.length) {
    say("tensorRank", rank, `must be ${dims.length}, the length of globalDim`);
    rank = dims.length;
  } else if (!ranks.includes(rank)) say("tensorRank", rank, within(least, most));
  for (const [name, values] of [["globalDim", dims], ["elementStrides", steps]]) {
    if (values.length !== rank) say(name, values, `must have ${rank} entries for rank ${rank}`);
  }
  if (steps.length !== rank) return;
  const first = { tiled: rank, im2col: rank - 1, w: 2 }[kind];
  const still = [0, ...Array.from({ length: Math.max(0, rank - first) }, (_, i) => first + i)];
  for (const axis of still) {
    const name = `elementStrides[${axis}]`;
    if (!inside(steps[axis], 1, LIMITS.stepMax) && kind !== "tiled") say(name, steps[axis], within(1, LIMITS.stepMax));
    else if (steps[axis] > 1 && steps[axis] <= LIMITS.stepMax) say(name, steps[axis], LIMITS.unwalked[axis && (axis === rank - 1 ? 1 : 2)], true);
  }
}

// Our name of a field -> the driver's, as lower_corner[w] -> pixelBoxLowerCorner[0].
function driverName(m) {
  const order = dimsOf(m).reverse();
  const first = {
    shape: ["globalDim", 0], strides: ["globalStrides", 1], lower_corner: ["pixelBoxLowerCorner", 1],
    upper_corner: ["pixelBoxUpperCorner", 1], traversal_stride: ["elementStrides", 0], step: ["elementStrides", 0],
    box: ["boxDim", 0],
  };
  const plain = {
    dtype: "tensorDataType", pixels_per_column: "pixelsPerColumn", channels_per_pixel: "channelsPerPixel",
    oob_fill: "oobFill", address: "globalAddress",
  };
  return (field) => {
    const [name, letter] = field.split(/[[\]]/);
    if (!(name in first)) return plain[field] || field;
    const [theirs, skip] = first[name];
    if (isWide(m) && name.includes("corner")) return `${theirs}Width`;
    return letter ? `${theirs}[${order.indexOf(letter) - skip}]` : theirs;
  };
}

// ---- a map in JSON --------------------------------------------------------------------------------

// The arguments of one of Python's classes.
function readOurs(given) {
  const kind = "box" in given ? "TiledMap" : "lower_corner_w" in given || "mode" in given ? "Im2colWideMap" : "Im2colMap";
  const known = LIMITS.classes[kind];
  const found = [];
  const say = (field, value, allowed) => found.push({ field, value, allowed, source: kind });
  const name = (field) => (kind === "Im2colWideMap" && LIMITS.wideFields[field]) || field;
  for (const n of Object.keys(given).filter((x) => !(x in known))) say(n, given[n], `is no argument of ${kind}`);
  for (const n of Object.keys(known).filter((x) => known[x] === "needed" && !(x in given))) say(n, null, "is missing");
  if (found.length) return { m: null, found, name };
  const a = { ...known, ...given };
  const type = LIMITS.types[a.dtype];
  if (!type) say("dtype", a.dtype, `is unknown here; name one of ${Object.keys(LIMITS.types).join(", ")}`);
  const mode = { TiledMap: "tiled", Im2colMap: "im2col" }[kind] || a.mode;
  if (!(mode in LIMITS.functions)) say("mode", mode, "must be one of w, w128");
  if (found.length) return { m: null, found, name };
  const each = (value, count) => (Array.isArray(value) ? value : Array(Math.max(0, count)).fill(value));
  const m = {
    mode, shape: a.shape, itemsize: type[0], floating: type[1], swizzle: a.swizzle, oob_fill: a.oob_fill,
    interleave: a.interleave ?? "none", strides: a.strides, address: a.address, box: [], pixels: a.pixels_per_column,
    channels: a.channels_per_pixel, lower: a.lower_corner, upper: a.upper_corner, step: a.traversal_stride,
  };
  if (mode === "tiled") {
    const step = Array.isArray(a.step) ? a.step : [...each(a.step, a.shape.length - 1), 1];
    Object.assign(m, { box: a.box, step, lower: [], upper: [], pixels: 1, channels: 1 });
  } else if (mode === "im2col") m.step = each(a.traversal_stride, a.shape.length - 2);
  else Object.assign(m, { lower: [a.lower_corner_w], upper: [a.upper_corner_w], step: [a.traversal_stride] });
  return { m, found, name };
}

// Whether all numbers are integers, in an array where one is asked for; what is not, as findings.
function formFindings(given) {
  const found = [];
  const many = new Set(LIMITS.arrays);
  const words = new Set(LIMITS.words);
  for (const [field, value] of Object.entries(given)) {
    const list = Array.isArray(value) ? value : [value];
    const whole = list.every((x) => Number.isSafeInteger(x));
    const open = value === null && ["offsets", "strides", "address", "globalAddress", "tensorMap"].includes(field);
    if (words.has(field) ? Array.isArray(value) : !open && (!whole || (many.has(field) && !Array.isArray(value))
      || (!many.has(field) && !LIMITS.either.includes(field) && Array.isArray(value)))) {
      found.push({ field, value, allowed: many.has(field) ? "must be a sequence of integers" : "must be an integer", source: "JSON" });
    }
  }
  return found;
}

// {m, start, found} of an object as `implicit-conv lint` reads it; m is null if it cannot be read.
function lintMap(object) {
  const given = { ...object };
  for (const name of ["function", "problem", "direction", "arch", "operator", "reduction"]) delete given[name];
  const form = formFindings(given);
  if (form.length) return { m: null, start: null, found: form };
  const operands = {};
  for (const name of ["coords", "offsets", "w_halo", "w_offset", "dst"]) {
    if (name in given) operands[name] = given[name];
    delete given[name];
  }
  const theirs = "globalDim" in given || "tensorDataType" in given;
  const { m, found, name } = theirs ? readDriver(given) : readOurs(given);
  const start = operands.coords ? { offsets: null, w_halo: 0, w_offset: 0, dst: 0, ...operands } : null;
  if (m === null) return { m, start, found };
  if (!m.itemsize) {
    const allowed = "elements of 4 or 6 bits are not checked on this page; use implicit-conv lint";
    return { m: null, start, found: [...found, { field: name("dtype"), value: "", allowed, source: callOf(m) }] };
  }
  let broken = mapFindings(m);
  const readable = !broken.some((f) => ["shape", "strides", "dtype"].includes(rootOf(f)));
  if (!broken.length && start) broken = startFindings(m, start);
  const wrong = new Set(broken.map(rootOf));
  if (readable) broken.push(...mapSuspicions(m).filter((f) => !wrong.has(rootOf(f))));
  return { m, start, found: [...found, ...broken.map((f) => ({ ...f, field: name(f.field) }))] };
}
