"""The GPU engine's host side; its kernels are in implicit_conv.kernels.gpu.

    arch                       what a target offers
    layout, maps               shared memory and tensor maps of a kernel
    candidate, planner         problem -> candidates -> choice; no GPU needed
    explain, trace             a choice in words, and its planned loads
    arrays, filter             device arrays of other libraries; packed filters
    arguments, launch, call    a choice bound to arrays, ready to launch
    run                        device arrays in place, numpy arrays through copies
    engine                     what the public functions call
    families, evidence         the families of kernels, and what has run on hardware
    cuda/                      everything that calls the CUDA driver

Checks of all this are in implicit_conv.verify.

Importing any of these loads neither numba.cuda nor cuda.bindings; only a launch does.
"""
