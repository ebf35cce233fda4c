"""Small changes of the sources of GPU kernels, as tests must notice them.

A change is drawn by an operator, then by one of its places in the modules that kernels are made of.
`-p kernel_mutants --mutant KEY` lets a run of pytest import the changed module, of which no file is
written, and prints what the first red test said. mutation_run.py draws many.
"""

import ast
import functools
import importlib.machinery
import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
# Modules whose functions run on a GPU or make those; the others plan, compile and launch.
MODULES = (
    "consumer direct epilogue epilogue_math fprop fragment gmem image_copy mbarrier mma "
    "phase_filters producer raster ring rows smem staged_rows store_16bit store_elements "
    "store_float32 tap_tables tma warp wgrad"
).split()
FILES = ("walk.py", *(f"gpu/{name}.py" for name in MODULES))

OUTCOME = "outcome of the mutant: "
# By a value, by a named cause, or by the proof of the rings.
SEEN = {"AssertionError", "Failed", "ProtocolError", "PtxError", "WriteError"}
UNMADE = {"TypingError", "LoweringError", "CompilerError", "NvvmError", "nvJitLinkError"}

COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
OPPOSITES = {ast.Eq: "!=", ast.NotEq: "=="}
OTHER = {
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "%", ast.Mod: "//"},
    **{ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&"},
}


class Mutant(NamedTuple):
    """A change of one line, which is so unless the source has changed."""

    file: str  # in the folder of kernels
    line: int
    column: int
    end: int
    operator: str
    was: str
    now: str
    first: int  # of the lines of the function around it
    last: int
    function: str

    @property
    def key(self):
        """What `--mutant` takes."""
        return f"{self.file}:{self.line}:{self.column}-{self.end}:{self.operator}"


def drop(node):
    """A statement that calls: a fence, a barrier, a wait, an arrival, a copy, a store."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"


def exchange(node):
    """Neighbours in a call or a tuple: stages, parities, strides, coordinates."""
    if isinstance(node, (ast.Call, ast.Tuple)):
        store = isinstance(node, ast.Tuple) and not isinstance(node.ctx, ast.Load)
        values = node.args if isinstance(node, ast.Call) else node.elts
        for a, b in itertools.pairwise(values):
            texts = ast.unparse(a), ast.unparse(b)
            if texts[0] != texts[1] and not store and a.lineno == b.end_lineno:
                yield (a, b), f"{texts[1]}, {texts[0]}"


def parity(node):
    """The other parity of a wait, or one that does not change."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        if ast.unparse(node.right) == "1":
            yield node, ast.unparse(node.left)
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1].startswith("wait"):
        if node.args and "parity" in ast.unparse(node.args[-1]):
            yield node.args[-1], f"{ast.unparse(node.args[-1])} ^ 1"


def bound(node):
    """A bound one more or one less, or with its limit in place of without."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        sign = COMPARISONS[type(node.ops[0])]
        yield node, f"{ast.unparse(node.left)} {sign} {ast.unparse(node.comparators[0])}"
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
        end = node.args[min(1, len(node.args) - 1)]
        step = ast.unparse(node.args[2]) if len(node.args) > 2 else "1"
        yield end, f"{ast.unparse(end)} - {step}"
        yield end, f"{ast.unparse(end)} + {step}"
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max"):
        other = {"min": "max", "max": "min"}[ast.unparse(node.func)]
        yield node.func, other


def narrow(node):
    """32 for 64 bits: a product with a stride in bytes."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        if re.fullmatch(r"call\.\w+_[a-z]", ast.unparse(node.right)):
            yield node, f"(({ast.unparse(node)} + 0x80000000) % 0x100000000 - 0x80000000)"


def constant(node):
    """A literal one more or one less."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, str(node.value + 1)
        yield node, str(node.value - 1)


def operation(node):
    """Another operation of integers."""
    if isinstance(node, ast.BinOp) and type(node.op) in OTHER:
        left, right = (
            f"({ast.unparse(x)})" if isinstance(x, ast.BinOp) else ast.unparse(x)
            for x in (node.left, node.right)
        )
        yield node, f"({left} {OTHER[type(node.op)]} {right})"


def condition(node):
    """The opposite, or always."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPPOSITES:
        sign = OPPOSITES[type(node.ops[0])]
        yield node, f"{ast.unparse(node.left)} {sign} {ast.unparse(node.comparators[0])}"
    if isinstance(node, (ast.If, ast.IfExp)):
        yield node.test, f"not ({ast.unparse(node.test)})"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        sides = node.left, node.right
        if any(isinstance(side, ast.Compare) for side in sides):
            yield node, ast.unparse(node.left)
            yield node, ast.unparse(node.right)


def product(node):
    """A factor that is left out."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield node, ast.unparse(node.left)
        yield node, ast.unparse(node.right)


OPERATORS = (drop, exchange, parity, bound, narrow, constant, operation, condition, product)


def code(tree):
    """(a node of a function's body, the outermost function around it), but no annotations."""
    for top in tree.body:
        functions = [top] if isinstance(top, ast.FunctionDef) else []
        for function in functions:
            skipped = set()
            for node in ast.walk(function):
                if isinstance(node, ast.FunctionDef):
                    hints = [node.returns, *node.decorator_list]
                    hints += [a.annotation for a in node.args.args]
                    body = node.body[0]
                    hints += [body] if isinstance(body, ast.Expr) else []
                    for hint in filter(None, hints):
                        skipped.update(map(id, ast.walk(hint)))
                if isinstance(node, ast.JoinedStr):
                    skipped.update(map(id, ast.walk(node)))
            for node in ast.walk(function):
                if id(node) not in skipped:
                    yield node, function


@functools.cache
def mutants():
    """All of them, by operator."""
    found = {operator.__name__: [] for operator in OPERATORS}
    for file in FILES:
        text = (KERNELS / file).read_text()
        lines = text.splitlines()
        for node, function in code(ast.parse(text)):
            for operator in OPERATORS:
                for place, now in operator(node):
                    first, last = place if isinstance(place, tuple) else (place, place)
                    if first.lineno != last.end_lineno:
                        continue
                    line = lines[first.lineno - 1]
                    start, end = (
                        len(line.encode()[:column].decode())
                        for column in (first.col_offset, last.end_col_offset)
                    )
                    inner = min(
                        (
                            f
                            for f in ast.walk(function)
                            if isinstance(f, ast.FunctionDef)
                            and f.lineno <= first.lineno <= f.end_lineno
                        ),
                        key=lambda f: f.end_lineno - f.lineno,
                    )
                    own = found[operator.__name__]
                    here = file, first.lineno, start, end
                    same = sum((m.file, m.line, m.column, m.end) == here for m in own)
                    own.append(
                        Mutant(
                            file,
                            first.lineno,
                            start,
                            end,
                            f"{operator.__name__}{same}",
                            line,
                            f"{line[:start]}{now}{line[end:]}",
                            inner.lineno,
                            inner.end_lineno,
                            inner.name,
                        )
                    )
    return found


def beside(mutant):
    """Whether the change is of host code in walk.py, or narrows a product with a number of tiles,
    which has no more than 32 bits.
    """
    if mutant.file == "walk.py":
        return "swizzle" not in mutant.function
    return mutant.operator.startswith("narrow") and re.search(
        r"\* call\.\w*tiles\w* \+ 0x8", mutant.now
    )


def drawn(seed):
    """Mutants without an end, each once, in the order of a seed."""
    rng, seen = random.Random(seed), set()
    while True:
        each = rng.choice(mutants()[rng.choice(OPERATORS).__name__])
        if each.key not in seen and not beside(each):
            seen.add(each.key)
            yield each


def find(key):
    """The mutant of a key."""
    for some in mutants().values():
        for each in some:
            if each.key == key:
                return each
    raise ValueError(f"no mutant {key}: the source has changed")


def plant(mutant):
    """Let the module be imported with the change; it must not be imported yet."""
    name = mutant.file.removesuffix(".py").replace("/", ".")
    assert f"implicit_conv.kernels.{name}" not in sys.modules
    get_data = importlib.machinery.SourceFileLoader.get_data

    def changed(self, path):
        data = get_data(self, path)
        if Path(path).resolve() != KERNELS / mutant.file:
            return data
        lines = data.decode().splitlines()
        assert lines[mutant.line - 1] == mutant.was, f"{mutant.key}: the source has changed"
        lines[mutant.line - 1] = mutant.now
        return "\n".join([*lines, ""]).encode()

    def no_cache(self, path):
        raise OSError

    class Loader(importlib.machinery.SourceFileLoader):
        get_data = changed
        path_stats = no_cache  # bytecode is neither read nor written

    class Finder(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, full, path=None, target=None):
            if full != f"implicit_conv.kernels.{name}":
                return None
            spec = super().find_spec(full, path, target)
            spec.loader = Loader(full, spec.origin)
            return spec

    sys.meta_path.insert(0, Finder)


def pytest_addoption(parser):
    parser.addoption("--mutant")


def pytest_configure(config):
    config.mutant_outcome = None
    plant(find(config.getoption("--mutant")))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed and not item.config.mutant_outcome:
        error, causes = call.excinfo.value, []
        while error is not None:
            causes.append(type(error).__name__)
            error = error.__cause__ or error.__context__
        said = str(call.excinfo.value)[-600:]
        test = item.nodeid.partition("@")[0]  # as xdist names groups
        item.config.mutant_outcome = {"test": test, "errors": causes, "said": said}


def pytest_unconfigure(config):
    print(OUTCOME + json.dumps(config.mutant_outcome))


def outcome(key, tests, seconds):
    """("killed", "no kernel" or "survived", what the first red test said)."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not gpu and not exhaustive", "-p", "kernel_mutants", "--mutant", key]
    done = subprocess.run(
        [*command, *tests],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    if OUTCOME not in done.stdout:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    found = json.loads(done.stdout.rpartition(OUTCOME)[2].partition("\n")[0])
    if not found:
        assert done.returncode == 0, done.stdout[-2000:]
        return "survived", None
    seen = found["errors"][0] in SEEN and not UNMADE.intersection(found["errors"])
    return ("killed" if seen else "no kernel"), found
