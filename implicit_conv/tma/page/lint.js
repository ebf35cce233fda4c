// A map in JSON as `implicit-conv lint` reads it: its form by the JSON schema, then the rules of Python,
// map_findings and others, which javascript.py prints. DATA.kinds are those of schema.py.

const OPERANDS = ["coords", "offsets", "w_halo", "w_offset", "dst"];
const NOT_CHECKED = ["function", "problem", "direction", "arch", "operator", "reduction"];
const rootOf = (finding) => finding.field.split("[")[0];

// Whether a value has a form of the schema. The rules themselves name the words that a field takes.
function fits(value, form) {
  const kinds = (form.anyOf ?? [form]).flatMap((one) => one.type ?? "string");
  if (Array.isArray(value)) return kinds.includes("array") && value.every(Number.isSafeInteger);
  if (value === null) return kinds.includes("null");
  return kinds.includes(Number.isSafeInteger(value) ? "integer" : typeof value);
}

// What is not of the form of a kind of map; `every`: it must have all that the kind needs.
function formFindings(given, kind, every) {
  const found = [];
  const say = (field, value, allowed) => found.push(new Finding({ field, value, allowed, source: kind.title }));
  for (const [field, value] of Object.entries(given)) {
    const form = kind.properties[field];
    if (!form) say(field, value, `is no argument of ${kind.title}`);
    else if (!fits(value, form)) {
      const many = form.type === "array" || form.anyOf;
      say(field, value, form.enum || form.type === "string" ? "must be a name" : `must be ${many ? "a sequence of integers" : "an integer"}`);
    } else if (field === "dtype" && !(value in DATA.types)) {
      say(field, value, `is unknown here; name one of ${Object.keys(DATA.types).join(", ")}`);
    } else if (field === "mode" && every && !form.enum.includes(value)) say(field, value, `must be one of ${form.enum.join(", ")}`);
  }
  for (const n of every ? kind.required.filter((name) => !(name in given)) : []) say(n, null, "is missing");
  return found;
}

// The description of the arguments of one of Python's classes.
function described(given, kind) {
  const defaults = Object.entries(kind.properties).filter(([, form]) => "default" in form).map(([n, form]) => [n, form.default]);
  const a = { ...Object.fromEntries(defaults), ...given };
  const each = (value, count) => (Array.isArray(value) ? value : Array(Math.max(0, count)).fill(value));
  const { shape, swizzle, oob_fill, strides, address, interleave = "none" } = a;
  const common = { ...DATA.types[a.dtype], shape, swizzle, oob_fill, strides, address, interleave };
  if (kind.title === "TiledMap") {
    const step = Array.isArray(a.step) ? a.step : [...each(a.step, shape.length - 1), 1];
    return with_rows(new Description({ ...common, mode: "tiled", lower: [], upper: [], box: a.box, step, pixels: 1, channels: 1 }));
  }
  const walk = { ...common, mode: a.mode ?? "im2col", pixels: a.pixels_per_column, channels: a.channels_per_pixel };
  const [lower, upper] = a.mode ? [[a.lower_corner_w], [a.upper_corner_w]] : [a.lower_corner, a.upper_corner];
  return new Description({ ...walk, lower, upper, step: each(a.traversal_stride, a.mode ? 1 : shape.length - 2) });
}

// {m, start, found} of an object; m is null if it cannot be read.
function lintMap(object) {
  const given = { ...object };
  for (const name of NOT_CHECKED) delete given[name];
  if (typeof given.mode === "string") given.mode = mode_of(given.mode);
  const [tiled, im2col, wide, call] = DATA.kinds;
  const theirs = "globalDim" in given || "tensorDataType" in given;
  const ours = "box" in given ? tiled : "lower_corner_w" in given || "mode" in given ? wide : im2col;
  const form = formFindings(given, theirs ? call : ours, !theirs);
  if (form.length) return { m: null, start: null, found: form };
  const operands = Object.fromEntries(OPERANDS.filter((name) => name in given).map((name) => [name, given[name]]));
  for (const name of OPERANDS) delete given[name];
  const [m, found] = theirs ? describe_arguments(given) : [described(given, ours), []];
  const start = operands.coords ? new Start(operands) : null;
  if (m === null) return { m, start, found };
  const name = theirs ? argument_name(m) : (field) => m.field(field);
  let broken = map_findings(m);
  const readable = !broken.some((f) => ["shape", "strides", "dtype"].includes(rootOf(f)));
  if (!broken.length && start) broken = start_findings(m, start);
  const wrong = new Set(broken.map(rootOf));
  if (readable) broken = [...broken, ...[...map_suspicions(m)].filter((f) => !wrong.has(rootOf(f)))];
  return { m, start, found: [...found, ...broken.map((f) => py.replace(f, { field: name(f.field) }))] };
}
