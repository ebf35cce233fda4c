"""Models that our backend of torch.compile compiles, against the same modules in float64."""

import copy

import torch

from implicit_conv.torch import backend as door
from implicit_conv.torch.region import RegionFunction

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 0.15}
ALWAYS = {"choose": "always"}


class Graphs:
    """A backend that keeps the graphs that it has compiled."""

    def __init__(self, **options):
        self.options, self.graphs = ALWAYS | options, []

    def __call__(self, graph, inputs):
        compiled = door.backend(graph, inputs, options=self.options)
        self.graphs.append(graph)
        return compiled

    @property
    def functions(self):
        """Those of all regions."""
        called = [node.target for graph in self.graphs for node in graph.graph.nodes]
        return [each for each in called if isinstance(each, RegionFunction)]

    @property
    def regions(self):
        """The numbers of elements of all regions."""
        return [len(each._elements) for each in self.functions]


def randomize(model):
    """A model in eval mode, whose batch norms are none of an identity."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("var"):
                each.uniform_(0.5, 2, generator=generator)
            elif each.is_floating_point():
                each.normal_(0, 0.4, generator=generator)
    return model.eval()


def compare(model, compiled, x):
    """Compare a result with that in float64, and its strides with those of the model itself."""
    exact = copy.deepcopy(model).double()
    exact._compiled_call_impl = None
    with torch.no_grad():
        own, found, exact = model._call_impl(x), compiled(x), exact(x.double())
    assert found.shape == own.shape
    assert found.dtype == own.dtype
    assert found.stride() == own.stride()
    bound = BOUNDS[x.dtype] * exact.abs().max()
    assert bool(((found.double() - exact).abs() <= bound).all())


def programs(function):
    """Those of all states of its weights; None where torch computes the region."""
    return [each for state in function._states for each in state.programs.values()]


def check(model, x, regions, times=3, **options):
    """Compare several calls, with new values at new addresses, of a model with such regions."""
    graphs = Graphs(**options)
    compiled = torch.compile(model, backend=graphs)
    for _ in range(times):
        compare(model, compiled, x)
        x = torch.randn_like(x)
    assert graphs.regions == regions, graphs.regions
    assert None not in [each for function in graphs.functions for each in programs(function)]
