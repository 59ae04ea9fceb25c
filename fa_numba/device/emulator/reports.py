"""Texts of reports that need more than one thread."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fa_numba.device.emulator.hazards import Hazard

if TYPE_CHECKING:
    from fa_numba.device.emulator.clocks import Clocks
    from fa_numba.device.emulator.global_memory import Window
    from fa_numba.device.emulator.thread import Thread

__all__ = ["ActorNames", "deadlock_report", "ranges_text", "unwritten_text"]

Index = tuple[int, int, int]


class ActorNames:
    """Names the threads and operations of a launch by their clocks, those of past blocks too."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: list[tuple[list[Index], int, list[dict[int, str]]]] = []

    def add(self, clocks: "Clocks", blocks: list[Index], threads_per_block: int) -> None:
        """Note the blocks that run under `clocks`."""
        self._starts.append(clocks.start)
        self._runs.append((blocks, threads_per_block, clocks.column_names))

    def name(self, actor: int, clock: int, block: Index | None) -> str:
        """Return a name, with the block unless it is `block`."""
        # A run's clocks are above its start.
        blocks, size, operations = self._runs[bisect_right(self._starts, clock - 1) - 1]
        if actor >= size * len(blocks):
            return operations[actor - size * len(blocks)][clock]
        rank, tid = divmod(actor, size)
        return f"thread {tid}" if blocks[rank] == block else f"thread {tid} of block {blocks[rank]}"


def ranges_text(numbers: Iterable[int]) -> str:
    """Return ``"0-31, 64"`` for a sorted sequence."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def deadlock_report(kernel: str, threads: Sequence["Thread"], hazards: Sequence[Hazard]) -> str:
    """Say which threads wait where, and for what.

    Parameters
    ----------
    kernel : str
        Its name.
    threads : sequence of Thread
        All that run together.
    hazards : sequence of Hazard
        What was found before.

    Returns
    -------
    str
        A line for each group of threads that wait for the same thing at the same line.
    """
    groups: dict[tuple[Index, str], list[int]] = {}
    for thread in threads:
        if thread.finished:
            text = "have finished"
        elif thread.waiting is not None:
            waitable, what = thread.waiting
            place = thread.machine.sites.site(thread.site())
            text = f"wait at {what}: {waitable!r}\n    {place}"
        else:
            continue
        groups.setdefault((thread.block.index, text), []).append(thread.tid)
    lines = [
        f"deadlock in kernel {kernel}: no thread can run and nothing asynchronous is under way"
    ]
    for (block, text), tids in groups.items():
        lines.append(f"  block {block}, threads {ranges_text(tids)} ({len(tids)}) {text}")
    if hazards:
        lines += ["found before:", *(f"  {hazard}" for hazard in hazards)]
    return "\n".join(lines)


def unwritten_text(window: "Window") -> str:
    """Say how many elements of an output were not written, and which is the first."""
    offsets = window.unwritten()
    if not offsets.size:
        return ""
    array = window.array
    flags = np.zeros(len(window.bytes), np.uint8)
    flags[offsets] = 1
    elements = np.lib.stride_tricks.as_strided(
        flags[window.address - window.start :],
        shape=(*array.shape, array.itemsize),
        strides=(*array.strides, 1),
    ).any(axis=-1)
    first = tuple(int(i) for i in np.unravel_index(int(elements.argmax()), array.shape))
    return (
        f"{int(elements.sum())} of {array.size} elements of output {window.name!r} were not "
        f"written; the first is {list(first)}"
    )
