"""What the emulator finds: one record for each place in a kernel and kind of fault."""

from dataclasses import dataclass

from fa_numba.device.emulator.sites import Site

__all__ = ["KINDS", "Deadlock", "EmulationError", "Hazard", "HazardLog"]

KINDS = {
    "race": "two threads use one byte, one of them writes, and nothing orders them",
    "double-write": "two threads write one byte of global memory, and nothing orders them",
    "uninitialised": "a byte is read that nothing has written",
    "out-of-bounds": "an address outside shared memory or outside every array of the launch",
    "misaligned": "an address that the access's width does not divide",
    "read-only": "a write into an array that was passed as input",
    "unwritten": "bytes of an output that the launch did not write",
    "divergent-barrier": "lanes of one warp meet a barrier or shuffle at different places",
    "barrier": "a barrier that the hardware does not have, or with two different counts",
    "shuffle-lane": "a shuffle whose mask leaves out the calling lane",
    "unwaited": "a block ended although nobody waited for an asynchronous operation",
    "float64": "an integer meets a float, which makes float64 on the GPU (strict mode)",
}
"""Every kind of hazard, and what it says."""


@dataclass(slots=True)
class Hazard:
    """One fault of a kernel, found while it ran.

    Attributes
    ----------
    kind : str
        A key of `KINDS`.
    message : str
        What happened, at the first thread that it happened to.
    kernel : str
        The kernel's name.
    block : tuple of int or None
        Index of the block in x, y, z; None for what belongs to the whole launch.
    thread : int or None
        Number of the thread in its block.
    op : str
        The op, ``""`` if the kernel itself is meant.
    file, line, source
        Where the kernel called the op.
    count : int
        How often it happened at this place.
    """

    kind: str
    message: str
    kernel: str
    block: tuple[int, int, int] | None
    thread: int | None
    op: str
    file: str
    line: int
    source: str
    count: int = 1

    def __str__(self) -> str:
        """Return the report: kind, place, message and source line."""
        who = f"kernel {self.kernel}"
        if self.block is not None:
            who += f", block {self.block}"
        if self.thread is not None:
            who += f", thread {self.thread}"
        often = f" ({self.count} times)" if self.count > 1 else ""
        where = Site(self.op, self.file, self.line, self.source)
        return f"[{self.kind}] {who}: {self.message}{often}\n    {where}"


class EmulationError(Exception):
    """The kernel cannot go on: it has read from an address where nothing is."""


class Deadlock(Exception):  # noqa: N818, the word that everyone knows
    """No thread can run any more; the message says who waits where, and for what."""


class HazardLog:
    """The hazards of a machine, one for each kind, op and line.

    Attributes
    ----------
    found : list of Hazard
        In the order of their first occurrence.
    """

    def __init__(self) -> None:
        self.found: list[Hazard] = []
        self._by_place: dict[tuple[str, str, str, int], Hazard] = {}

    def add(
        self,
        kind: str,
        message: str,
        *,
        kernel: str,
        block: tuple[int, int, int] | None,
        thread: int | None,
        site: Site,
    ) -> Hazard:
        """Record a hazard, or count it if its place is known."""
        place = (kind, site.op, site.file, site.line)
        known = self._by_place.get(place)
        if known is not None:
            known.count += 1
            return known
        hazard = Hazard(
            kind, message, kernel, block, thread, site.op, site.file, site.line, site.source
        )
        self._by_place[place] = hazard
        self.found.append(hazard)
        return hazard
