"""XNNPACK, by the interpreter of LiteRT: a TFLite network of one convolution of NHWC images.

TFLite knows two paddings: none, and "same", whose high side is at most one pixel more than the low
one. Any other becomes a node before the convolution, which XNNPACK fuses with it.
"""

from __future__ import annotations

import numpy as np

from implicit_conv.testing import Array, Case
from implicit_conv.tools.rivals import Function

FILE = b"TFL3"  # identifier of the format
SCHEMA_VERSION = 3


def convolution(case: Case, x: Array, w: Array, threads: int) -> Function:
    """The convolution; its result has channels second, and is overwritten by the next call."""
    from ai_edge_litert.interpreter import Interpreter

    engine = Interpreter(model_content=network(case, w), num_threads=threads)
    engine.allocate_tensors()
    engine.set_tensor(engine.get_input_details()[0]["index"], x)
    y = engine.tensor(engine.get_output_details()[0]["index"])

    def call() -> Array:
        engine.invoke()
        found: Array = y().transpose(0, 3, 1, 2)  # a view: the interpreter allows none in a call
        return found

    return call


def network(case: Case, w: Array) -> bytes:
    """A TFLite network with a CONV_2D or DEPTHWISE_CONV_2D node from x to y, after a PAD node where
    TFLite has no such padding.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT(
        version=SCHEMA_VERSION,
        buffers=[schema.BufferT()],
        operatorCodes=[],
        subgraphs=[schema.SubGraphT(tensors=[], operators=[], inputs=[0])],
    )
    graph = model.subgraphs[0]

    def tensor(shape: tuple[int, ...], values: Array | None = None) -> int:
        """A new tensor, whose values are constant or unknown."""
        number = 0
        if values is not None:
            model.buffers.append(schema.BufferT(data=values.view(np.uint8).ravel()))
            number = len(model.buffers) - 1
        integers = values is not None and values.dtype == np.int32
        kind = schema.TensorType.INT32 if integers else schema.TensorType.FLOAT32
        graph.tensors.append(schema.TensorT(shape=list(shape), type=kind, buffer=number))
        return len(graph.tensors) - 1

    def node(name: str, options: object, inputs: list[int], output: int) -> None:
        code = getattr(schema.BuiltinOperator, name)
        model.operatorCodes.append(
            schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=code)
        )
        kind = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
        graph.operators.append(
            schema.OperatorT(
                opcodeIndex=len(model.operatorCodes) - 1,
                inputs=inputs,
                outputs=[output],
                builtinOptionsType=kind,
                builtinOptions=options,
            )
        )

    source = tensor(case.problem.input_shape)
    same = is_same(case)
    if not same and any(map(any, case.padding)):
        edges = np.array([(0, 0), *case.padding, (0, 0)], np.int32)
        padded = (n + sum(edge) for n, edge in zip(case.problem.input_shape, edges, strict=True))
        inputs = [source, tensor(edges.shape, edges)]
        source = tensor(tuple(map(int, padded)))
        node("PAD", schema.PadOptionsT(), inputs, source)
    channels = case.K * case.groups
    bias = np.zeros(channels, np.float32)
    depthwise = case.C == 1 < case.groups
    filters = np.ascontiguousarray(w.transpose((1, 2, 3, 0) if depthwise else (0, 2, 3, 1)))
    options = schema.DepthwiseConv2DOptionsT() if depthwise else schema.Conv2DOptionsT()
    if depthwise:
        options.depthMultiplier = case.K
    options.padding = schema.Padding.SAME if same else schema.Padding.VALID
    options.strideH, options.strideW = case.stride
    options.dilationHFactor, options.dilationWFactor = case.dilation
    inputs = [source, tensor(filters.shape, filters), tensor(bias.shape, bias)]
    output = tensor(case.problem.output_shape)
    node("DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", options, inputs, output)
    graph.outputs = [output]
    builder = flatbuffers.Builder(w.nbytes + 4096)
    builder.Finish(model.Pack(builder), FILE)
    return bytes(builder.Output())


def is_same(case: Case) -> bool:
    """Whether the padding is what TFLite calls "same": outputs are as many as inputs over the
    stride, rounded up, and the high side has the odd pixel.
    """
    axes = zip(case.size, case.kernel, case.stride, case.dilation, case.padding, strict=True)
    for n, taps, stride, dilation, padding in axes:
        total = max(0, (-(-n // stride) - 1) * stride + (taps - 1) * dilation + 1 - n)
        if padding != (total // 2, total - total // 2):
            return False
    return True
