"""These tests need the twins of hooks, so tests/gpu/test_simulator.py runs them in processes with
NUMBA_ENABLE_CUDASIM=1.
"""

from implicit_conv.kernels.gpu import ptx

if not ptx.SIMULATED:
    collect_ignore_glob = ["test_*.py"]
