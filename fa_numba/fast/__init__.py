"""The kernels and their stages: the algorithm for GPUs and for the emulator.

A module has the stem of the one in `fa_numba.reference` that tells the same in NumPy. Kernels are
made from a frozen configuration by ``make_<kernel>(config)``; stages are plain functions that a
kernel calls, built for the same configuration where they depend on one. Nothing here imports
Numba: the functions are compiled by `fa_numba.device`, or called as they are by its emulator.
"""
