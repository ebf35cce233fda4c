"""The GPU engine's host side; kernels are in implicit_conv.kernels.

    api        what the public functions ask for: demands -> plan
    run        a plan and arrays: in place, or numpy's by copies (`transfer`)
    arch       what a target offers; `driver`: what the GPU at hand is
    candidates -> plan -> explain         which kernel, by what estimate; no GPU needed
    layout, maps, call                    what follows from a plan: shared memory, maps, arguments
    arrays, filter                        arrays of other libraries; packed filters
    encode, load, launch                  tensor maps, kernels and launches by the driver
    simulate                              a plan's kernel without a GPU
    assembly, evidence, testing, check*   what is known of each kernel, and how it is found out

Importing any of it loads neither numba.cuda nor cuda.bindings; a launch does.
"""
