"""The methods: each file has one way to compute a convolution.

docs/contributing/add-a-method.md adds one. The order of parts is the same in every file: the
mapping, costs, the class (candidates, layout, operator, packed order, strides, arguments, loads,
words), then refusals, views, tilings and the estimate.
"""
