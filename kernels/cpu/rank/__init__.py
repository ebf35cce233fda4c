"""Filters of images that order the elements of a window: extrema, medians and other ranks.

No element is changed, so that each dtype has vectors of its own. In reading order: `layout` says
what callers know, `networks` compares elements in fixed pairs, `operator` names parts. The family
`images` cuts images, loads rows and starts launches. What is compiled: `tiles` takes rows from
level to level, `checks` finds floats that have no order. Levels are `extremes`, `selections` by
networks, and `counts` for larger windows; `elements` has the vectors of all.
"""
