"""Measurements for maintainers: run, compare, gates, report; ``python -m perf --help``."""
