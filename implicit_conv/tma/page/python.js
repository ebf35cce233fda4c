// What JavaScript lacks of Python, for the functions that javascript.py prints: operators and built-in
// functions, and methods of built-in types. A tuple or a list is an array, a dict an object, None is
// null; numbers are integers, exact below 2^53 and where they have few digits in base 2.

const py = {
  TypeError, ValueError: Error,
  add: (a, b) => (typeof a === "object" ? [...a, ...py.each(b)] : a + b),
  all: (x) => py.each(x).every(py.yes),
  and: (a, other) => (py.yes(a) ? other() : a),
  any: (x) => py.each(x).some(py.yes),
  at: (of, i) => (i < 0 ? of[of.length + i] : of[i]),
  each: (x) => (x[Symbol.iterator] ? [...x] : Object.keys(x)),
  enumerate: (x) => py.each(x).map((entry, i) => [i, entry]),
  gcd: (a, b) => (b ? py.gcd(b, a % b) : a),
  getattr: (x, name) => x[name],
  has: (x, of) => (of.includes ? of.includes(x) : Object.hasOwn(of, x)),
  hex: (x) => `0x${BigInt(x).toString(16)}`,
  isinstance: (x) => typeof x === "string", // it is asked of texts alone
  len: (x) => x.length,
  map: (fn, x) => py.each(x).map((entry) => fn(entry)),
  max: (...x) => Math.max(...(x.length === 1 ? py.each(x[0]) : x)),
  min: (...x) => Math.min(...(x.length === 1 ? py.each(x[0]) : x)),
  mod: (a, b) => ((a % b) + b) % b,
  next: (x, otherwise) => py.each(x)[0] ?? otherwise,
  or: (a, other) => (py.yes(a) ? a : other()),
  prod: (x) => py.each(x).reduce((a, b) => a * b, 1),
  range: (...ends) => {
    const [first, end] = ends.length === 1 ? [0, ends[0]] : ends;
    return Array.from({ length: Math.max(0, end - first) }, (_, i) => first + i);
  },
  replace: (x, fields) => Object.assign(Object.create(Object.getPrototypeOf(x)), x, fields),
  same: (a, b) => (Array.isArray(a) && Array.isArray(b) ? a.length === b.length && a.every((x, i) => py.same(x, b[i])) : a === b),
  slice: (of, start, stop, by) => {
    const [step, end] = [by ?? 1, of.length];
    const place = (i, absent) => (i === null ? absent : i < 0 ? end + i : i);
    const last = step > 0 ? Math.min(place(stop, end), end) : Math.max(place(stop, -1), -1);
    const found = [];
    for (let i = step > 0 ? Math.max(place(start, 0), 0) : Math.min(place(start, end), end - 1); step > 0 ? i < last : i > last; i += step) found.push(of[i]);
    return typeof of === "string" ? found.join("") : found;
  },
  sorted: (x) => py.each(x).sort((a, b) => a.map((entry, i) => entry - b[i]).find((less) => less) ?? 0), // of tuples
  str: (x) => {
    if (Array.isArray(x)) return `(${x.map(py.str).join(", ")}${x.length === 1 ? "," : ""})`;
    return Number.isInteger(x) ? BigInt(x).toString() : String(x ?? "None");
  },
  times: (a, b) => (Array.isArray(a) ? Array(Math.max(0, b)).fill(a).flat() : a * b),
  yes: (x) => Boolean(x) && x.length !== 0,
  zip: (...lists) => {
    const arrays = lists.map(py.each);
    return py.range(Math.min(...arrays.map((x) => x.length))).map((i) => arrays.map((x) => x[i]));
  },
};
Object.assign(py, { iter: py.each, list: py.each, tuple: py.each });

const method = {
  append: (of, x) => of.push(x),
  get: (of, key, otherwise = null) => (Object.hasOwn(of, key) ? of[key] : otherwise),
  index: (of, x) => of.indexOf(x),
  insert: (of, i, x) => of.splice(i, 0, x),
  items: (of) => Object.entries(of),
  join: (by, x) => py.each(x).join(by),
  lower: (x) => x.toLowerCase(),
  partition: (x, by) => (x.includes(by) ? [x.slice(0, x.indexOf(by)), by, x.slice(x.indexOf(by) + by.length)] : [x, "", ""]),
  removeprefix: (x, start) => (x.startsWith(start) ? x.slice(start.length) : x),
  rstrip: (x, end) => (x.endsWith(end) ? method.rstrip(x.slice(0, -1), end) : x),
};
