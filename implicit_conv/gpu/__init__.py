"""The GPU engine's host side; kernels are in implicit_conv.kernels.

    api        check -> plan -> launch, for device arrays and for numpy arrays
    arch       what a target offers; `driver`: what the GPU at hand is
    candidates -> plan -> explain       which kernel, by what estimate; no GPU needed
    layout, maps, call                  what follows from a plan: shared memory, maps, arguments
    arrays, transfer                    arrays of other libraries; numpy arrays there and back
    encode, load, launch                tensor maps, kernels and launches by the driver
    simulate                            a plan's kernel without a GPU
    assembly, evidence, testing, check  what is known of each kernel, and how it is found out

Importing any of it loads neither numba.cuda nor cuda.bindings; a launch does.
"""
