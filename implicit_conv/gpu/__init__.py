"""The GPU engine's host side; its kernels are in implicit_conv.kernels.gpu.

    cuda/arch                  what a target offers
    plan/layout, maps          shared memory and tensor maps of a kernel
    plan/candidate, planner    problem -> candidates -> choice; no GPU needed
    plan/explain, trace        a choice in words, and its planned loads
    plan/families              the families of kernels, and what has run on hardware
    run/launch, call           a choice bound to arrays, ready to launch
    run/run                    device arrays in place, numpy arrays through copies; packed filters
    run/engine                 what the public functions call
    cuda/                      everything that calls the CUDA driver; arrays of other libraries

Checks of all this are in implicit_conv.testing.gpu.

Importing any of these loads neither numba.cuda nor cuda.bindings; only a launch does.
"""
