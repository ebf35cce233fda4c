"""These tests need the twins of the hooks, hence a process of their own with
NUMBA_ENABLE_CUDASIM=1: tests/gpu/test_simulator.py starts it.
"""

from implicit_conv.kernels.gpu import ptx

if not ptx.SIMULATED:
    collect_ignore_glob = ["test_*.py"]
