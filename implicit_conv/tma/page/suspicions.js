// What is legal but rarely meant: the warnings of implicit_conv/tma/check/suspicions.py that need no guess
// of a mistake; tests/tma/test_page_rules.py compares the findings.

const CONVENTION = "addressing of a convolution";
const rootOf = (f) => f.field.split("[")[0];

function mapSuspicions(m) {
  const found = [];
  const say = (field, value, allowed, source = callOf(m)) => found.push({ field, value, allowed, source, warning: true });
  const dims = dimsOf(m);
  cornerSuspicions(lettersOf(m), sizesOf(m), m, say);
  strideSuspicions(m, dims, say);
  m.shape.forEach((size, i) => {
    const allowed = "exceeds 2^31, the limit of cuda.h 13.5; earlier headers say 2^32";
    if (size > LIMITS.sizeMaxNew) say(`shape[${dims[i]}]`, size, allowed);
  });
  const { pixels, channels } = isTiled(m) ? boxCounts(m) : m;
  const bytes = channels * m.itemsize;
  if (m.mode !== "w128" && pixels * bytes > LIMITS.smemBytes) {
    const allowed = `${pixels} rows of ${bytes} bytes exceed the ${LIMITS.smemBytes} of shared memory`;
    if (isTiled(m)) say("box", m.box, allowed, CONVENTION);
    else say("pixels_per_column", pixels, allowed, CONVENTION);
  }
  const [unit, C] = [Math.max(1, Math.floor(16 / m.itemsize)), m.shape[m.shape.length - 1]];
  if (!isTiled(m) && channels > Math.ceil(C / unit) * unit) {
    say("channels_per_pixel", channels, `exceeds C = ${C}: the rest of every row is filled`, CONVENTION);
  }
  return found;
}

// Corners that hardly any convolution has; `walk` is a map or a copy.
function cornerSuspicions(axes, sizes, walk, say) {
  if (walk.lower.length !== sizes.length || walk.upper.length !== sizes.length) return;
  sizes.forEach((size, i) => {
    const [lower, upper] = [walk.lower[i], walk.upper[i]];
    const past = isWide(walk) ? upper >= Math.max(LIMITS.endMin, Math.floor(size / 2))
      : lower + upper > 0 || (lower < 0 && lower + upper === 0);
    const allowed = "upper corner reaches past the last output: rows would overrun";
    if (past) say(`upper_corner[${axes[i]}]`, upper, allowed, CONVENTION);
    if (lower > 0) say(`lower_corner[${axes[i]}]`, lower, "the box begins inside the image", CONVENTION);
  });
}

// Strides of an image; a tiled map may have any.
function strideSuspicions(m, dims, say) {
  if (isTiled(m) || !m.strides || m.strides.length !== m.shape.length - 1 || m.interleave !== "none") return;
  const ends = [...m.strides.slice(1), m.itemsize];
  m.strides.forEach((stride, i) => {
    const least = BigInt(ends[i]) * BigInt(m.shape[i + 1]); // beyond 2^53 for absurd strides
    if (stride < least) say(`strides[${dims[i]}]`, stride, `is smaller than the dimension it steps over, ${least} bytes`);
  });
}

// Rows of shared memory that a box fills, and elements of a row. The last step counts if slices are
// interleaved.
function boxCounts(m) {
  const steps = m.interleave === "none" ? [...m.step.slice(0, -1), 1] : m.step;
  const counts = m.box.slice(0, steps.length).map((count, i) => ceilDiv(count, Math.max(1, steps[i])));
  return { pixels: counts.slice(0, -1).reduce((a, b) => a * b, 1), channels: m.box[m.box.length - 1] ?? 1 };
}
