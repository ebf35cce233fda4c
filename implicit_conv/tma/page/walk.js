"use strict";
// The arithmetic of the page repeats kernels/walk.py and implicit_conv/tma/run/lowering_choice.py;
// tests/tma/test_explore.py compares their results. Positions are (n, [d,] h, w). Corners, steps and
// offsets are ([d,] h, w), or only W for the wide modes. A copy is {mode, shape, lower, upper, step,
// pixels, start, offsets}, a buffer is {halo, offset}.

const W128_PIXELS = 128;
const W128_GROUP = 32;
const HALO_END = { im2col: 1, w: 512, w128: 32 };
const W_OFFSET_END = 32;
const CORNER_BITS = { 3: 16, 4: 8, 5: 5 };

const ceilDiv = (a, b) => Math.ceil(a / b);
const mod = (a, b) => ((a % b) + b) % b;
const gcd = (a, b) => (b ? gcd(b, a % b) : a);
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

// The row of halo element j of group g is 128 + 4 * j + g; it is -1 if pixel k is in no halo.
function w128HaloRow(k, halo) {
  const group = Math.floor(k / W128_GROUP) - 1;
  const element = k % W128_GROUP;
  return group < 0 || element >= halo ? -1 : W128_PIXELS + 4 * element + group;
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
      const row = w128HaloRow(k, buffer.halo);
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

// The errors of a copy, in words; empty if it can be walked.
function faults(copy, buffers) {
  const found = [];
  if (copy.mode === "tiled") {
    const check = (name, value, low, high) => {
      if (!(value >= low && value <= high)) found.push(`${name} = ${value}: must be in [${low}, ${high}]`);
    };
    copy.shape.forEach((size, i) => check(`tensor[${i}]`, size, 1, LIMITS.sizeMax));
    copy.box.forEach((count, i) => check(`box[${i}]`, count, 1, 256));
    copy.step.forEach((step, i) => check(`step[${i}]`, step, 1, 8));
    return found;
  }
  const letters = "dhw".slice(5 - 1 - copy.shape.length);
  const names = isWide(copy) ? ["w"] : [...letters];
  const spatial = copy.shape.slice(1);
  const sizes = isWide(copy) ? spatial.slice(-1) : spatial;
  const start = isWide(copy) ? copy.start.slice(-1) : copy.start.slice(1);
  const bits = isWide(copy) ? 16 : CORNER_BITS[copy.shape.length + 1];
  const range = (name, value, low, high) => {
    if (!(value >= low && value <= high)) found.push(`${name} = ${value}: must be in [${low}, ${high}]`);
  };
  copy.shape.forEach((size, i) => range("NDHW"[i && i + 4 - copy.shape.length], size, 1, LIMITS.sizeMax));
  range("pixels", copy.pixels, 1, 1024);
  names.forEach((name, i) => {
    const [lower, last] = [copy.lower[i], sizes[i] - 1 + copy.upper[i]];
    range(`lower ${name}`, lower, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1);
    range(`upper ${name}`, copy.upper[i], -(2 ** (bits - 1)), 2 ** (bits - 1) - 1);
    range(`step ${name}`, copy.step[i], 1, 8);
    if (lower > last) found.push(`box of ${name} [${lower}, ${last}] is empty`);
    else if (start[i] > last || (!isWide(copy) && start[i] < lower)) {
      const rule = isWide(copy) ? "must not be right of" : "must start inside";
      found.push(`start ${name} = ${start[i]}: ${rule} the box [${lower}, ${last}]`);
    }
    if (!isWide(copy)) range(`offset ${name}`, copy.offsets[i], 0, 2 ** bits - 1);
  });
  if (isWide(copy)) {
    for (const buffer of buffers) {
      range("w_halo", buffer.halo, 0, HALO_END[copy.mode] - 1);
      range("w_offset", buffer.offset, 0, W_OFFSET_END - 1);
    }
  }
  return found;
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

function phaseBuffers(w) {
  const phases = Math.min(w.taps, w.stride / gcd(w.stride, w.dilation));
  const base = (b) => (b * w.dilation < W_OFFSET_END ? Math.floor((b * w.dilation) / w.stride) : 0);
  const shift = (s) => Math.floor((s * w.dilation) / w.stride) - base(s % phases);
  const buffers = Array.from({ length: phases }, (_, b) => ({
    offset: ((b * w.dilation) % w.stride) + w.stride * base(b),
    halo: shift(b + Math.floor((w.taps - 1 - b) / phases) * phases),
  }));
  return { buffers, shift };
}

// L: the least number of slots such that a tap that wraps reads zeros on both sides.
function slotsPerRow(w, shift, buffers) {
  const clean = (slots) => {
    for (let s = 0; s < w.taps; s++) {
      const offset = buffers[s % buffers.length].offset;
      for (let q = Math.max(0, slots - shift(s)); q < w.out; q++) {
        const wraps = Math.floor((q + shift(s)) / slots);
        const position = w.lower + (q + shift(s)) * w.stride + offset;
        if (position < w.size || position - wraps * slots * w.stride >= 0) return false;
      }
    }
    return true;
  };
  let slots = w.out;
  while (!clean(slots)) slots += 1;
  return slots;
}

function lowerWide(conv, h, w) {
  const { buffers, shift } = phaseBuffers(w);
  const slots = slotsPerRow(w, shift, buffers);
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
  return w128HaloRow(m + tap.shift, buffers[tap.buffer].halo);
}

function instruction(copy, buffer) {
  const rank = copy.shape.length + 1;
  const name = { tiled: "tile", im2col: "im2col", w: "im2col::w", w128: "im2col::w::128" }[copy.mode];
  const coords = [0, ...copy.start.slice().reverse()].join(", ");
  const start = `cp.async.bulk.tensor.${rank}d.shared::cta.global.${name}.mbarrier::complete_tx::bytes `
    + `[dst], [map, {${coords}}], [mbar]`;
  if (copy.mode === "tiled") return `${start};`;
  const info = isWide(copy) ? [buffer.halo, buffer.offset] : copy.offsets.slice().reverse();
  return `${start}, {${info.join(", ")}};`;
}
