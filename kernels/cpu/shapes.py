"""Shapes of the register tiles and panels that a Geometry is cut into; each needs a microkernel."""

import itertools

from implicit_conv.kernels import schedule


def register_tiles(g):
    """All (groups, inner) shapes of register tiles that the tiles of `g` are cut into."""
    shapes = set()
    for n, p, q in tile_extents(g):
        _, group, inner = schedule.by_role(g, n, p, q)
        step = max(1, g.tile_m // inner)
        groups = {min(step, group), group % step} - {0}
        shapes |= {(count, height) for count in groups for height in _heights(g, inner)}
    return sorted(shapes)


def box_tiles(g, m):
    """Likewise for Winograd, whose register tiles span the boxes of a load tile."""
    extents = tile_extents(g)
    return sorted({(1, h) for n, p, q in extents for h in _heights(g, n * p * q // m**2)})


def _heights(g, pixels):
    """Heights of the register tiles that `pixels` are cut into."""
    parts = schedule.ceil_div(pixels, g.tile_m)
    return {(i + 1) * pixels // parts - i * pixels // parts for i in range(parts)}


def tile_extents(g):
    """All (images, rows, columns) that tiles of `g` have: whole ones and the last."""
    axes = ((g.N, g.tile_n), (g.P, g.tile_p), (g.Q, g.tile_q))
    return list(itertools.product(*({min(size, t), size % t} - {0} for size, t in axes)))


def panel_widths(g, lanes):
    """Vectors of the panels of `g`: 2 for a whole one, 1 for a last one that one holds."""
    rest = g.K % g.tile_k
    widths = {g.tile_k // lanes} if g.K >= g.tile_k else set()
    return sorted(widths | ({schedule.ceil_div(rest, lanes)} if rest else set()))
