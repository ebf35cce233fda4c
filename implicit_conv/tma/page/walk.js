// The arithmetic of the page: copies by their walks, convolutions by their copies. What a copy may be and
// how loads are scheduled is Python's, printed by javascript.py; tests/tma/test_explore.py compares the
// rest. Positions are (n, [d,] h, w). Corners, steps and offsets are ([d,] h, w), or only W for the wide
// modes. A copy is {mode, shape, lower, upper, step, pixels, start, offsets}, a buffer is {halo, offset}.

const { W128_PIXELS, W128_GROUP, OFFSET_MAX } = DATA;
const ceilDiv = (a, b) => Math.ceil(a / b);
const isWide = (copy) => copy.mode === "w" || copy.mode === "w128";

function axesOf(copy, offset) {
  const spatial = copy.shape.slice(1);
  const sizes = isWide(copy) ? spatial.slice(-1) : spatial;
  return sizes.map((size, i) => ({
    lower: copy.lower[i] + offset,
    end: size + copy.upper[i] + offset,
    step: copy.step[i],
  }));
}

// The position after `at`: the last axis steps and carries to the axis before it; in a wide walk, W
// carries directly to n.
function nextPixel(at, axes, wide) {
  const next = at.slice();
  const last = next.length - 1;
  for (let i = axes.length - 1; i >= 0; i--) {
    const place = wide ? last : i + 1;
    next[place] += axes[i].step;
    if (next[place] < axes[i].end) return next;
    next[place] = axes[i].lower;
  }
  next[0] += 1;
  return next;
}

// Rows of shared memory that a copy into a buffer fills: {index, order, at, filled, halo}.
function walkRows(copy, buffer) {
  if (copy.mode === "tiled") return boxRows(copy);
  const wide = isWide(copy);
  const offset = wide ? buffer.offset : 0;
  const axes = axesOf(copy, offset);
  const pixels = copy.mode === "w128" ? W128_PIXELS : copy.pixels;
  const count = pixels + (wide ? buffer.halo : 0);
  const rows = [];
  let at = copy.start.slice();
  at[at.length - 1] += offset;
  for (let k = 0; k < count; k++) {
    const seen = at.map((x, i) => (i && !wide && copy.offsets ? x + copy.offsets[i - 1] : x));
    const filled = seen.some((x, i) => x < 0 || x >= copy.shape[i]);
    const put = (index, halo) => (rows[index] = { index, order: k, at: seen, filled, halo });
    if (copy.mode !== "w128") put(k, k >= pixels);
    else {
      if (k < pixels) put(k, false);
      const row = w128_halo_row(k, buffer.halo);
      if (row >= 0) put(row, true);
    }
    at = nextPixel(at, axes, wide);
  }
  return rows;
}

// The rows of a tiled copy: its box in row-major order, every step-th position of each axis.
function boxRows(copy) {
  let rows = [[]];
  copy.box.forEach((count, i) => {
    const places = Array.from({ length: ceilDiv(count, copy.step[i]) }, (_, k) => copy.start[i] + k * copy.step[i]);
    rows = rows.flatMap((row) => places.map((x) => [...row, x]));
  });
  return rows.map((at, k) => ({
    index: k, order: k, at, filled: at.some((x, i) => x < 0 || x >= copy.shape[i]), halo: false,
  }));
}

// The map of a copy; the page leaves out channels, so that a pixel has 16 bytes here.
function mapOf(copy) {
  const tiled = copy.mode === "tiled";
  const none = { oob_fill: "zero", interleave: "none", address: null, floating: false, channels: 2 };
  const fields = { ...none, mode: copy.mode, itemsize: 8, shape: [...copy.shape, 2], strides: copy.shape.map(() => 16), pixels: copy.pixels };
  if (tiled) return new Description({ ...fields, swizzle: "none", lower: [], upper: [], box: [...copy.box, 2], step: [...copy.step, 1] });
  return new Description({ ...fields, swizzle: isWide(copy) ? "64B" : "none", lower: copy.lower, upper: copy.upper, step: copy.step });
}

const said = (f) => `${f.field} = ${py.str(f.value)}: ${f.allowed}`;

// The errors of a copy, in words; empty if it can be walked.
function faults(copy, buffers) {
  const m = mapOf(copy);
  const found = map_findings(m);
  if (found.length) return found.map(said);
  return buffers.flatMap(({ halo, offset }) => start_findings(m, new Start({
    coords: [...copy.start, 0], offsets: copy.mode === "im2col" ? copy.offsets : null, w_halo: halo, w_offset: offset,
  }))).map(said);
}

// A convolution {N, H, W, R, S, stride, dilation, padLo, padHi (h, w), tile, mode} as copies.
function lower(conv) {
  const axis = (i, size, taps) => ({
    size, taps, stride: conv.stride[i], dilation: conv.dilation[i], lower: -conv.padLo[i],
    upper: conv.padHi[i] - (taps - 1) * conv.dilation[i],
    out: Math.floor((size + conv.padLo[i] + conv.padHi[i] - (taps - 1) * conv.dilation[i] - 1)
      / conv.stride[i]) + 1,
  });
  const h = axis(0, conv.H, conv.R);
  const w = axis(1, conv.W, conv.S);
  return conv.mode === "im2col" ? lowerIm2col(conv, h, w) : lowerWide(conv, h, w);
}

function lowerIm2col(conv, h, w) {
  const copy = {
    mode: "im2col", shape: [conv.N, conv.H, conv.W], lower: [h.lower, w.lower],
    upper: [h.upper, w.upper], step: [h.stride, w.stride], pixels: conv.tile,
  };
  const outputs = (tile) => Array.from({ length: conv.tile }, (_, i) => {
    const m = tile * conv.tile + i;
    const at = [Math.floor(m / (h.out * w.out)), Math.floor(m / w.out) % h.out, m % w.out];
    return { at, kept: at[0] < conv.N };
  });
  const blocks = (tile) => {
    const [n, p, q] = outputs(tile)[0].at;
    const start = [n, h.lower + p * h.stride, w.lower + q * w.stride];
    const list = [];
    for (let r = 0; r < h.taps; r++) {
      for (let s = 0; s < w.taps; s++) {
        const offsets = [r * h.dilation, s * w.dilation];
        list.push({ r, loads: [{ ...copy, start, offsets }], taps: [{ r, s, buffer: 0, shift: 0 }] });
      }
    }
    return list;
  };
  const tiles = ceilDiv(conv.N * h.out * w.out, conv.tile);
  return { P: h.out, Q: w.out, slots: w.out, buffers: [{ halo: 0, offset: 0 }], tiles, outputs, blocks };
}

function lowerWide(conv, h, w) {
  const axis = [w.dilation, w.stride, OFFSET_MAX];
  const phases = remainder_count(w.taps, w.stride, w.dilation);
  const shift = (s) => tap_shift(s, phases, ...axis);
  const buffers = py.range(phases).map((b) => ({ offset: buffer_offset(b, ...axis), halo: buffer_halo(b, w.taps, phases, ...axis) }));
  const slots = slots_per_row(w.size, w.out, w.taps, w.stride, w.dilation, -w.lower, OFFSET_MAX);
  const tile_m = conv.mode === "w128" ? W128_PIXELS : conv.tile;
  const copy = {
    mode: conv.mode, shape: [conv.N, conv.H, conv.W], lower: [w.lower],
    upper: [w.lower + (slots - 1) * w.stride - (w.size - 1)], step: [w.stride], pixels: tile_m,
  };
  const perRow = ceilDiv(conv.N * slots, tile_m);
  const outputs = (tile) => Array.from({ length: tile_m }, (_, i) => {
    const m = (tile % perRow) * tile_m + i;
    const at = [Math.floor(m / slots), Math.floor(tile / perRow), m % slots];
    return { at, kept: at[0] < conv.N && at[2] < w.out };
  });
  const blocks = (tile) => {
    const [n, p, slot] = outputs(tile)[0].at;
    const taps = Array.from({ length: w.taps }, (_, s) => ({ s, buffer: s % buffers.length, shift: shift(s) }));
    const list = [];
    for (let r = 0; r < h.taps; r++) {
      const row = h.lower + p * h.stride + r * h.dilation;
      if (row < 0 || row >= h.size) continue; // the row is padding and adds zeros
      const start = [n, row, w.lower + slot * w.stride];
      const loads = buffers.map(() => ({ ...copy, start }));
      list.push({ r, loads, taps: taps.map((tap) => ({ r, ...tap })) });
    }
    return list;
  };
  return { P: h.out, Q: w.out, slots, buffers, tiles: h.out * perRow, outputs, blocks };
}

// The shared-memory row that a tap reads for row m of the tile.
function viewRow(mode, m, tap, buffers) {
  if (mode !== "w128" || (m % W128_GROUP) + tap.shift < W128_GROUP) return m + tap.shift;
  return w128_halo_row(m + tap.shift, buffers[tap.buffer].halo);
}

const instructionOf = (copy, { halo, offset } = {}) => instruction(copy.mode, [...copy.start, 0], copy.offsets, halo, offset);
