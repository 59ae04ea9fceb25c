"""What is running now: read by every op, written by the executor."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fa_numba.device.emulator.machine import Machine
    from fa_numba.device.emulator.thread import Thread

current: "Thread | None" = None
"""The emulated thread that runs; None outside a kernel."""

machine: "Machine | None" = None
"""The machine of the innermost `fa_numba.emulate()`; None outside it."""

strict: Callable[[str, Any], Any] | None = None
"""Turns a number into a strict integer by its type's tag, while a kernel runs in strict mode."""
