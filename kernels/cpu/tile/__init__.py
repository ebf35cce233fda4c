"""Parts that all families share: loading a tile, transposing, finishing and storing sums."""
