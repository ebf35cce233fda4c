"""The order in which a persistent grid visits the tiles of the output."""

from implicit_conv.kernels.gpu.ptx import device


@device
def tile_at(call, index):
    """(group, gemm_m tile, gemm_n tile) of the index-th tile.

    gemm_n varies fastest, so blocks that run at the same time share activations, which are the
    larger operand, and all filters stay in L2.
    """
    group, rest = index // (call.tiles_m * call.tiles_n), index % (call.tiles_m * call.tiles_n)
    return group, rest // call.tiles_n, rest % call.tiles_n
