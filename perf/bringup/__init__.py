"""Bring-up kit: the first run of the kernels on a GPU, from one file that was packed elsewhere.

``python -m perf pack FILE`` needs the compilers and no GPU. Then ``python -m
perf.bringup run FILE`` needs a GPU, its driver, numpy and cuda-bindings, and no
compiler. ``rehearse FILE`` runs the same steps on the PTX interpreter, which needs numpy alone.
"""
