"""Pictures: copies, shared memory and tensors drawn as SVG and as text.

It imports maps and what they do.
"""
