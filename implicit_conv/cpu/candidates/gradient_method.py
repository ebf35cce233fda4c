"""GradientMethod: a method of weight gradients, whose launches read x and dy and write dw."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate, Given
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, operator
from implicit_conv.cpu.run.call import Arrays, ordered_arrays
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels.cpu.runtime.program import Step, address_of, launched
from implicit_conv.kernels.cpu.wgrad.layout import WeightGradLayout

if TYPE_CHECKING:
    pass

FEW_ELEMENTS = 4096  # elements of dw below which pixels are divided into parts
MOST_PARTS = 16  # parts that load tiles are divided into, at most
PART_TILES = 4  # load tiles of a part, at least


class GradientMethod(KernelMethod):
    """A method of weight gradients. Nothing is packed, and a gradient has no epilogue."""

    swapped = False  # whether x and dy, and thus channels and filters, change their roles

    @abstractmethod
    def layout(self, c: Candidate) -> WeightGradLayout:
        """Sizes of scratch memory."""

    def filter_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """A weight gradient reads no filter."""
        return 0

    def operands(self, c: Candidate, x: Array, dy: Array) -> tuple[Array, Array]:
        """x and dy, with five axes, in the roles of x and dy of the view."""
        return x, dy

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of scratch memory of all threads, and of the sums of parts."""
        layout = self.layout(c)
        return c.threads * layout.scratch(packs=False).total + layout.partial_bytes

    def views(
        self, c: Candidate, arrays: Arrays, filter_axes: tuple[int, ...] | None = None
    ) -> Arrays:
        """The arrays of a call, (x, dy, dw), as those of the convolution: dw is its filter, and dy
        its output.
        """
        x, dy, dw, *_ = arrays
        assert dy is not None
        return ordered_arrays(c.problem, Arrays(x, dw, dy))

    def packed(self, c: Candidate) -> PackedOrder:
        """Nothing is packed."""
        return PackedOrder(("nothing",), 0)

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """The launches for arrays of these strides, of which `w` is dw and `y` is dy: sums of parts
        are in the room, and a second launch adds them. A gradient has no epilogue, and its loads
        are not recorded.
        """
        arrays, room = given.arrays, given.room
        compiled = operator(c, given.formats)
        from implicit_conv.kernels.cpu.wgrad.operator import Gradients
        from implicit_conv.kernels.cpu.wgrad.operator import WeightGrad as WeightGradOperator

        assert isinstance(compiled, WeightGradOperator) and arrays.w is not None
        dw = arrays.w.swapaxes(0, 1) if self.swapped else arrays.w
        operands = Gradients(*self.operands(c, arrays.x, arrays.y), dw)
        main, add = compiled.prepare_gradient(operands, c.threads)
        places = address_of(operands.x), address_of(operands.dy), address_of(dw)
        if add is None:
            return [launched(main, room, *places)]
        sums = room.take(self.layout(c).partial_bytes)
        return [launched(main, room, *places, sums), launched(add, room, *places, sums)]


def tile_parts(elements: int, tiles: int) -> int:
    """Parts of `tiles` load tiles: several if the `elements` of dw are too few to keep threads
    busy; it depends on no number of threads, since the order of a sum does not.
    """
    return 1 if elements >= FEW_ELEMENTS else max(1, min(MOST_PARTS, tiles // PART_TILES))
