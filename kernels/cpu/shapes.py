"""Shapes of the register tiles and panels that a Geometry is cut into; each needs a microkernel."""

import itertools

from implicit_conv.kernels import schedule


def register_tiles(g):
    """All (groups, inner) shapes of register tiles that the tiles of `g` are cut into."""
    shapes = set()
    for n, p, q in tile_extents(g):
        _, group, inner = schedule.by_role(g, n, p, q)
        heights = _heights(g, inner)
        band = schedule.rows_together(min(heights), g.tile_m)
        for height in heights:
            step = schedule.rows_together(height, g.tile_m)
            for rows in {min(band, group), group % band}:
                shapes |= {(count, height) for count in {min(step, rows), rows % step} - {0}}
    return sorted(shapes)


def box_tiles(g, m):
    """Likewise for Winograd, whose register tiles span the boxes of a load tile."""
    extents = tile_extents(g)
    return sorted({(1, h) for n, p, q in extents for h in _heights(g, n * p * q // m**2)})


def _heights(g, pixels):
    """Heights of the register tiles that `pixels` are cut into."""
    return {height for height, count in schedule.cuts(pixels, g.tile_m) if count}


def tile_extents(g):
    """All (images, rows, columns) that tiles of `g` have: whole ones and the last."""
    axes = ((g.N, g.tile_n), (g.P, g.tile_p), (g.Q, g.tile_q))
    return list(itertools.product(*({min(size, t), size % t} - {0} for size, t in axes)))


def panel_widths(g, lanes):
    """Vectors of the panels of `g`: 2 for a whole one, 1 for a last one that one holds."""
    rest = g.K % g.tile_k
    widths = {g.tile_k // lanes} if g.K >= g.tile_k else set()
    return sorted(widths | ({schedule.ceil_div(rest, lanes)} if rest else set()))
