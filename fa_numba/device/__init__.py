"""How a kernel meets a machine: instructions, compiler, launch, and the emulator.

Nothing is imported here: a kernel's module imports `fa_numba.device.ops`, `fa_numba.device.types`
and `fa_numba.device.kernel`, and none of these needs Numba or a GPU.
"""
