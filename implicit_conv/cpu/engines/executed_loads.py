"""Record the loads that a debug build executes, to compare them with the planned ones."""

from __future__ import annotations

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Given
from implicit_conv.cpu.candidates.kernel_method import KernelMethod
from implicit_conv.cpu.candidates.problem_views import in_own_axes
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.kernels.cpu.runtime.program import Program, Room, W, X, Y, placed
from implicit_conv.kernels.geometry import Epilogue
from implicit_conv.problem.schedule import Load


def executed_loads(engine: CpuEngine, x: Array, w: Array) -> list[Load]:
    """The loads executed for contiguous `x` and `w`, sorted; `engine.trace` has the plan."""
    from implicit_conv.kernels.cpu.runtime.compiled.executed_loads import Recording

    recording = Recording(capacity=2 * len(engine.trace()) + 64)
    y = np.empty(engine.problem.output_shape, numpy_dtype(engine.y_dtype))
    formats = engine.formats._replace(recording=True)
    c = engine.best
    at_x, at_w, at_y = (
        placed(place, array.shape, array.dtype, array.strides)
        for place, array in ((X, x), (W, w), (Y, y))
    )
    arrays = c.method.views(c, Arrays(at_x, at_w, at_y))
    epilogue, room = Epilogue(engine.activation), Room()
    steps = c.method.steps(c, Given(arrays, epilogue, formats, room, recording.address))
    Program(steps, room).run(*(array.ctypes.data for array in (x, w, y)))
    g = c.geometry
    assert isinstance(c.method, KernelMethod)
    mode = "w" if g.step_w == g.stride_w else "tile"
    loads = [
        Load("w", "tile", tuple(where), None, 0, 0, buffer, rows, size)
        if is_filter
        else Load("x", mode, tuple(where), None, halo, offset, buffer, rows, size)
        for is_filter, *where, offset, halo, buffer, rows, size in recording.loads()
    ]
    return sorted(in_own_axes(engine.problem, c.problem, c.method.as_problem(c, loads)))
