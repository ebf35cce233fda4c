"""Translate one function from its syntax tree.

What is translated is a small part of Python: numbers, tuples and named tuples, records behind a
pointer, `if`, `while`, `for` over ranges and tuples, and calls of intrinsics and of functions of
the same kind. Integers are 64 bits wide. Anything else raises an error that names the line.

A variable that changes is kept on the stack, from where LLVM takes it into registers. Its shape is
assumed to be that of the first value, until a wider one comes; then all is translated again.
"""

import ast
from types import FunctionType
from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import I64, VOID
from implicit_conv.kernels.cpu.translate import source
from implicit_conv.kernels.cpu.translate.expression import Expressions
from implicit_conv.kernels.cpu.translate.module import Callee, Module
from implicit_conv.kernels.cpu.translate.values import (
    Known,
    UnsupportedError,
    as_kind,
    compute,
    flat_types,
    flatten,
    is_known,
    rebuild,
    shape_of,
    widest,
)
from implicit_conv.process.preparation import give_way


class _WidenedError(Exception):
    """A variable or the result is wider than was assumed."""


class _Loop(NamedTuple):
    """Where `continue` and `break` go."""

    following: ir.Block
    end: ir.Block
    breaks: list[set[str]]  # the variables that have a value at each `break`


# What Python raises for operations on values that are known.
KNOWN_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
RESULT = "return"  # no variable has this name


def translate(module: Module, function: FunctionType, shapes: list[Any]) -> Callee:
    """Add a function to a module, for arguments of these shapes.

    Raises
    ------
    TranslationError
        It does something that cannot be translated.
    """
    widths: dict[str, Any] = {}
    while True:
        body = _Body(module, function, shapes, widths)
        try:
            return body.translate()
        except _WidenedError:
            del module.ir.globals[body.function.name]


class _Body(Expressions):
    """The translation of one function; `widths` has the shapes that are assumed."""

    def __init__(
        self, module: Module, function: FunctionType, shapes: list[Any], widths: dict[str, Any]
    ) -> None:
        self._definition = source.definition_of(function)
        self._constants = source.constants(self._definition)
        self._shapes, self._widths = shapes, widths
        self._result = widths.get(RESULT, _result_guess(self._definition))
        results = flat_types(self._result)
        returned = VOID if not results else results[0]
        if len(results) > 1:
            returned = ir.LiteralStructType(results)
        kinds = [kind for shape in shapes for kind in flat_types(shape)]
        name = module.ir.get_unique_name(f"{function.__name__}.py")  # no C function has a dot
        self.function = ir.Function(module.ir, ir.FunctionType(returned, kinds), name)
        self.function.linkage = "internal"
        super().__init__(module, function, ir.IRBuilder(self.function.append_basic_block()))
        parameters = self._definition.args
        if parameters.posonlyargs or parameters.vararg or parameters.kwonlyargs or parameters.kwarg:
            raise self.error(self._definition, "parameters of another kind than `name`")
        self._entry = self.builder.block
        self._slots: dict[str, list[ir.Value]] = {}
        self._loops: list[_Loop] = []

    def translate(self) -> Callee:
        """Translate the whole function."""
        start = self.builder.append_basic_block()
        self.builder.position_at_end(start)
        parts = iter(self.function.args)
        for argument, shape in zip(self._definition.args.args, self._shapes, strict=True):
            self._bind(argument.arg, rebuild(shape, parts))
        body = self._definition.body
        self._block([*body, ast.copy_location(ast.Return(value=None), body[-1])])
        self.builder.position_at_end(self._entry)
        self.builder.branch(start)
        return Callee(self.function, self._result)

    def _block(self, statements: list[ast.stmt]) -> None:
        """Translate statements up to the first that is never reached."""
        for statement in statements:
            if self.builder.block.is_terminated:
                return
            give_way()
            translate = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if translate is None:
                raise self.error(statement, f"a statement {type(statement).__name__}")
            try:
                translate(statement)
            except UnsupportedError as error:
                raise self.error(statement, str(error)) from None
            except KNOWN_ERRORS as error:
                raise self.error(statement, f"{type(error).__name__}: {error}") from error

    # Variables.

    def _bind(self, name: str, value: Any) -> None:
        """Let a variable have a value."""
        self.assigned.add(name)
        if name in self._constants:
            self.names[name] = value
            return
        shape = self._widen(name, value)
        if name not in self._slots:
            with self.builder.goto_block(self._entry):
                self._slots[name] = [self.builder.alloca(kind) for kind in flat_types(shape)]
        parts = flatten(self.builder, value, shape)
        for part, slot in zip(parts, self._slots[name], strict=True):
            self.builder.store(part, slot)

    def _widen(self, name: str, value: Any) -> Any:
        """The shape that is assumed for `name`, after `value`."""
        shape = shape_of(value)
        assumed = self._widths.setdefault(name, shape)
        if shape != assumed and widest(assumed, shape) != assumed:
            self._widths[name] = widest(assumed, shape)
            raise _WidenedError
        return assumed

    def variable(self, name: str) -> Any:
        """The value of a variable that is kept on the stack."""
        parts = [self.builder.load(slot) for slot in self._slots[name]]
        return rebuild(self._widths[name], iter(parts))

    # Statements.

    def _assign(self, statement: ast.Assign) -> None:
        value = self.value(statement.value)
        for target in statement.targets:
            self._assign_to(target, value)

    def _assign_to(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, value)
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple):
            for part, each in zip(target.elts, value, strict=True):
                self._assign_to(part, each)
        else:
            raise self.error(target, "an assignment to anything but variables")

    def _augassign(self, statement: ast.AugAssign) -> None:
        if not isinstance(statement.target, ast.Name):
            raise self.error(statement, "a change of anything but a variable")
        name = statement.target.id
        before, change = self.name(statement.target), self.value(statement.value)
        operation = type(statement.op).__name__
        self._bind(name, compute(self.builder, operation, before, change))

    def _expr(self, statement: ast.Expr) -> None:
        self.value(statement.value)

    def _pass(self, statement: ast.Pass) -> None:
        """Nothing to do."""

    def _return(self, statement: ast.Return) -> None:
        value = None if statement.value is None else self.value(statement.value)
        shape = shape_of(value)
        if shape != self._result:
            wider = shape
            if RESULT in self._widths:
                wider = widest(self._result, shape)
            if wider != self._result:
                self._widths[RESULT] = wider
                raise _WidenedError
        parts = flatten(self.builder, value, self._result)
        if not parts:
            self.builder.ret_void()
        elif len(parts) == 1:
            self.builder.ret(parts[0])
        else:
            returned = ir.Constant(self.function.function_type.return_type, ir.Undefined)
            for i, part in enumerate(parts):
                returned = self.builder.insert_value(returned, part, i)
            self.builder.ret(returned)
        self._widths.setdefault(RESULT, self._result)

    def _continue(self, statement: ast.Continue) -> None:
        self.builder.branch(self._loops[-1].following)

    def _break(self, statement: ast.Break) -> None:
        self._loops[-1].breaks.append(self.assigned)
        self.builder.branch(self._loops[-1].end)

    def _if(self, statement: ast.If) -> None:
        test = self.test(statement.test)
        if not isinstance(test, ir.Value):
            self._block(statement.body if test else statement.orelse)
            return
        blocks = [self.builder.append_basic_block() for _ in range(3 if statement.orelse else 2)]
        self.builder.cbranch(test, *blocks[:2])
        end, before = blocks[-1], self.assigned
        reached = [] if statement.orelse else [before]
        for block, statements in zip(blocks[:-1], (statement.body, statement.orelse), strict=False):
            self.builder.position_at_end(block)
            self.assigned = {*before}
            self._block(statements)
            if not self.builder.block.is_terminated:
                self.builder.branch(end)
                reached.append(self.assigned)
        if reached:
            self.builder.position_at_end(end)
            self.assigned = set.intersection(*reached)
        else:
            self.function.blocks.remove(end)

    def _while(self, statement: ast.While) -> None:
        self._refuse_else(statement)
        head, body, end = (self.builder.append_basic_block() for _ in range(3))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        test = self.test(statement.test)
        if isinstance(test, ir.Value):
            self.builder.cbranch(test, body, end)
        else:
            self.builder.branch(body if test else end)
        loop = _Loop(head, end, [])
        self._loop(body, statement.body, loop)
        if test is True and not loop.breaks:
            self.function.blocks.remove(end)  # what follows is never reached
            return
        self.builder.position_at_end(end)
        if test is True:
            self.assigned = set.intersection(*loop.breaks)

    def _refuse_else(self, statement: ast.While | ast.For) -> None:
        if statement.orelse:
            raise self.error(statement.orelse[0], "an `else` of a loop")

    def _loop(
        self,
        block: ir.Block,
        statements: list[ast.stmt],
        loop: _Loop,
        item: tuple[ast.expr, Any] | None = None,
    ) -> None:
        """The body of a loop, from the block on, for an item of `for`: its target and value.

        What is assigned here may have no value after the loop.
        """
        before = self.assigned
        self.assigned = {*before}
        self.builder.position_at_end(block)
        if item is not None:
            self._assign_to(*item)
        self._loops.append(loop)
        self._block(statements)
        self._loops.pop()
        self.assigned = before
        if not self.builder.block.is_terminated:
            self.builder.branch(loop.following)

    def _for(self, statement: ast.For) -> None:
        self._refuse_else(statement)
        over = statement.iter
        if isinstance(over, ast.Call) and self.value(over.func) is range:
            self._for_range(statement, [self.value(argument) for argument in over.args])
            return
        items = self.value(over)
        if not isinstance(items, tuple):
            raise self.error(over, "a loop over anything but a range or a tuple")
        end = self.builder.append_basic_block()
        for item in items:
            following = self.builder.append_basic_block()
            body = self.builder.append_basic_block()
            self.builder.branch(body)
            self._loop(body, statement.body, _Loop(following, end, []), (statement.target, item))
            self.builder.position_at_end(following)
        self.builder.branch(end)
        self.builder.position_at_end(end)

    def _for_range(self, statement: ast.For, limits: list[Any]) -> None:
        builder = self.builder
        start, stop, step = {1: (0, *limits, 1), 2: (*limits, 1)}.get(len(limits), limits)
        if is_known(step) and step == 0:
            raise self.error(statement, "a step of zero")
        first, last, change = (as_kind(builder, limit, I64) for limit in (start, stop, step))
        before = builder.block
        head, body, following, end = (builder.append_basic_block() for _ in range(4))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(first, before)
        up = builder.icmp_signed("<", index, last)
        down = builder.icmp_signed(">", index, last)
        if isinstance(step, ir.Value):
            positive = builder.icmp_signed(">", step, ir.Constant(I64, 0))
            test = builder.select(positive, up, down)
        else:
            test = up if step > 0 else down
        builder.cbranch(test, body, end)
        self._loop(body, statement.body, _Loop(following, end, []), (statement.target, index))
        builder.position_at_end(following)
        index.add_incoming(builder.add(index, change, flags=["nsw"]), following)
        builder.branch(head)
        builder.position_at_end(end)


def _result_guess(definition: ast.FunctionDef) -> Any:
    """What a function probably returns, which saves a second translation if it is right."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Return) and node.value is not None:
            if isinstance(node.value, ast.Tuple):
                return (tuple, *[I64] * len(node.value.elts))
            return I64
    return Known(None)
