"""Parts that all families share: they load tiles, transpose, finish sums and store them."""
