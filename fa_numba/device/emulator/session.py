"""`fa_numba.emulate`: where kernels run in the emulator."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fa_numba.device.emulator import state

if TYPE_CHECKING:
    from fa_numba.device.emulator.machine import Machine

__all__ = ["emulate"]


@contextmanager
def emulate(
    policy: str = "late/late",
    schedule: str = "round_robin",
    seed: int = 0,
    trace: bool | str = False,
    strict: bool = False,
) -> "Iterator[Machine]":
    """Run kernels on NumPy arrays, without a GPU, and find what is wrong with them.

    Inside the ``with`` block, NumPy arrays with a kernel backend run that kernel's own source in
    the emulator.

    Parameters
    ----------
    policy : str
        When asynchronous copies and matrix units end, within what the hardware guarantees:
        ``"copies/matrix"``, each ``"late"``, ``"early"`` or ``"random"``; one word stands for both.
    schedule : str
        Which thread runs next: ``"round_robin"``, ``"random"`` (threads are interrupted anywhere)
        or ``"time"`` (a virtual clock).
    seed : int
        For everything that is drawn.
    trace : bool or str
        True or ``"warps"`` records a trace with a track for each warp, ``"threads"`` one for each
        thread; ``machine.trace.save(path)`` writes it for Perfetto.
    strict : bool
        Whether integers in kernels follow Numba's rules to the letter.

    Yields
    ------
    Machine
        ``machine.hazards`` lists what was found, ``machine.bank_conflicts`` counts the turns lost
        in shared memory.

    Raises
    ------
    ImportError
        If greenlet or threadpoolctl is missing: ``pip install "fa_numba[emulator]"``.
    """
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(
            'the emulator needs threadpoolctl: pip install "fa_numba[emulator]"'
        ) from error
    from fa_numba.device.emulator.machine import Machine

    machine = Machine(policy, schedule, seed, trace, strict)
    outer, state.machine = state.machine, machine
    try:
        # The emulation multiplies small matrices, one at a time: threads would only wait.
        with threadpool_limits(limits=1, user_api="blas"):
            yield machine
    finally:
        state.machine = outer
