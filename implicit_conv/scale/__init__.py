"""Arrays that are larger than memory: tiles of files, and blocks of dask and of cubed.

A door: it imports operators, arrays, problems and `implicit_conv.ndimage`, whose filters it cuts
into blocks.
"""
