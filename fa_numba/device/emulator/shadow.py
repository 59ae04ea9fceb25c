"""Data races, exactly: for every byte, who wrote it last and who has read it since.

Two accesses of one byte, at least one of them a write, race unless one happens before the other
(`clocks`). It does not matter in which order the emulator happened to run them.

The common case is a block whose threads all meet at barriers. Whatever happened before such a
barrier can race with nothing after it, so two marks a byte are enough to tell that an access is
harmless: whether it was written since the last full barrier, and who has read it since. Only where
a mark leaves it open are the clocks compared.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from fa_numba.device.emulator.clocks import Actor, Clocks

__all__ = ["Access", "Conflict", "Shadow"]

Access = tuple[int, int, int, int, int]
"""First byte, end, actor, clock and site."""

# The flag of a byte that nothing has written. 1: written since the last full barrier.
_NEVER = 2

# The mark of a byte that several actors have read, or one without a mark of its own.
_MANY = 255

# A slice of a bytearray is assigned and compared fastest with another bytearray. Those of the usual
# lengths are ready; longer ones are made when needed.
_SHORT = 16
_MARKS = [[bytearray([mark]) * n for n in range(_SHORT + 1)] for mark in range(_MANY + 1)]
_ZEROS, _ONES = _MARKS[0], _MARKS[1]

# Reads are thrown out when they are more than this and ordered before every thread.
_PRUNE_AT = 4096

# A range of this many bytes is taken apart by NumPy, a shorter one in Python.
_FEW_BYTES = 64

Conflict = Callable[[str, Actor, int, int, int, int], None]
"""Called with what is wrong (``"uninitialised"``, ``"read-write"``, ``"write-read"`` or
``"write-write"``: the earlier access first), who finds it, the first byte, and the actor, clock and
site of the earlier access."""


def _bytes(value: int, count: int) -> bytearray:
    return bytearray([value]) * count


class Shadow:
    """The accesses to one memory that may still be in conflict with a later one.

    Parameters
    ----------
    size : int
        Bytes.
    clocks : Clocks
        Of the threads that run. A memory that outlives a block gets the next block's.
    conflict : callable
        Called for every conflict.
    """

    def __init__(self, size: int, clocks: Clocks, conflict: Conflict) -> None:
        self.size = size
        self.clocks = clocks
        self._conflict = conflict
        self._written = bytearray([_NEVER]) * size
        # Who has read a byte since it was written last: 0 for nobody, an actor's number + 1 if it
        # is small and was alone, else _MANY.
        self._readers = bytearray(size)
        # The last write of each byte, as a number in the list of writes, 0 if none is in it. Most
        # writes are forgotten before anyone asks: the array is behind by the list's newest.
        self._writer = np.zeros(size, np.int32)
        self._writes: list[Access] = [(0, 0, 0, 0, 0)]
        self._num_painted = 1
        # Five numbers a read: first byte, end, actor, clock, site. The newest are in the list.
        self._new_reads: list[int] = []
        self._reads = np.empty((5, 0), np.int64)
        self._num_reads = 0
        self._prune_at = _PRUNE_AT
        # Accesses of actors that no barrier of the block's threads settles; whether they write.
        self._outside: list[tuple[bool, Access]] = []

    def read(self, who: Actor, lo: int, hi: int, site: int) -> None:
        """Check and record a read of the bytes [lo, hi)."""
        n = hi - lo
        if self._written[lo:hi] != (_ZEROS[n] if n <= _SHORT else bytearray(n)):
            self._check_writers(who, lo, hi, "write-read")
        mark = who.actor + 1
        if n <= _SHORT and mark < _MANY:
            own = _MARKS[mark][n]
            known = self._readers[lo:hi]
            self._readers[lo:hi] = own if known == _ZEROS[n] or known == own else _MARKS[_MANY][n]
        else:
            self._readers[lo:hi] = _bytes(_MANY, n)
        self._new_reads.extend((lo, hi, who.actor, who.clock, site))

    def write(self, who: Actor, lo: int, hi: int, site: int) -> None:
        """Check and record a write of the bytes [lo, hi)."""
        n = hi - lo
        if self._written.find(1, lo, hi) >= 0:
            self._check_writers(who, lo, hi, "write-write")
        readers = self._readers[lo:hi]
        none = _ZEROS[n] if n <= _SHORT else bytearray(n)
        if readers != none:
            if n > _SHORT or who.actor + 1 >= _MANY or readers != _MARKS[who.actor + 1][n]:
                self._check_readers(who, lo, hi)
            # A later write that this one does not order is in conflict with this one: the reads
            # before it need no memory of their own.
            self._readers[lo:hi] = none
        self._written[lo:hi] = _ONES[n] if n <= _SHORT else _bytes(1, n)
        self._writes.append((lo, hi, who.actor, who.clock, site))

    def unwritten(self, lo: int, hi: int) -> npt.NDArray[np.bool]:
        """Return which of the bytes [lo, hi) nothing has written."""
        return np.frombuffer(self._written, np.uint8)[lo:hi] == _NEVER

    def initialise(self, lo: int, hi: int) -> None:
        """Take the bytes [lo, hi) for written by something before all threads."""
        self._written[lo:hi] = bytearray(hi - lo)

    def change_clocks(self, clocks: Clocks) -> None:
        """Go on with the next block, whose threads have the numbers of the last block's."""
        self.clocks = clocks
        if self._new_reads or self._num_reads:
            marks = np.frombuffer(self._readers, np.uint8)
            marks[marks != 0] = _MANY

    def read_outside(self, who: Actor, lo: int, hi: int, site: int) -> None:
        """Do as `read`, for an actor that is not among the threads given to `settle`."""
        self.read(who, lo, hi, site)
        self._outside.append((False, (lo, hi, who.actor, who.clock, site)))

    def write_outside(self, who: Actor, lo: int, hi: int, site: int) -> None:
        """Do as `write`, for an actor that is not among the threads given to `settle`."""
        self.write(who, lo, hi, site)
        self._outside.append((True, (lo, hi, who.actor, who.clock, site)))

    def settle(self, witness: Actor) -> None:
        """Forget what happened before a barrier that all threads of the block have passed.

        Parameters
        ----------
        witness : Actor
            One of them. Accesses from outside (`read_outside`) that it does not know are kept.
        """
        flags = np.frombuffer(self._written, np.uint8)
        flags &= _NEVER
        self._readers[:] = bytearray(self.size)
        if self._num_painted > 1:
            self._writer.fill(0)
        del self._writes[1:]
        self._num_painted = 1
        self._new_reads.clear()
        self._num_reads = 0
        if self._outside:
            self._outside = [
                (is_write, access)
                for is_write, access in self._outside
                if not self.clocks.is_before(witness, access[2], access[3])
            ]
            for is_write, access in self._outside:
                lo, hi = access[:2]
                if is_write:
                    self._written[lo:hi] = _bytes(1, hi - lo)
                    self._writes.append(access)
                else:
                    self._readers[lo:hi] = _bytes(_MANY, hi - lo)
                    self._new_reads.extend(access)

    def _check_writers(self, who: Actor, lo: int, hi: int, order: str) -> None:
        if order == "write-read":
            byte = self._written.find(_NEVER, lo, hi)
            if byte >= 0:
                self._conflict("uninitialised", who, byte, 0, 0, 0)
        for number in range(self._num_painted, len(self._writes)):
            first, stop = self._writes[number][:2]
            self._writer[first:stop] = number
        self._num_painted = len(self._writes)
        writer = self._writer[lo:hi]
        numbers: Iterable[int]
        if hi - lo <= _FEW_BYTES:
            numbers = set(writer.tolist())
        else:
            starts = np.flatnonzero(writer[1:] != writer[:-1]) + 1
            numbers = {int(writer[0]), *writer[starts].tolist()}
        for number in numbers:
            _, _, actor, clock, site = self._writes[number]
            if number and not self.clocks.is_before(who, actor, clock):
                byte = lo + int(np.flatnonzero(writer == number)[0])
                self._conflict(order, who, byte, actor, clock, site)

    def _check_readers(self, who: Actor, lo: int, hi: int) -> None:
        table = self._read_table()
        hits = np.flatnonzero((table[0] < hi) & (table[1] > lo))
        if not hits.size:
            return
        _, _, actors, clocks, _ = table[:, hits]
        for i in hits[~self.clocks.are_before(who, actors, clocks)][:1].tolist():
            first, _, actor, clock, site = table[:, i].tolist()
            self._conflict("read-write", who, max(lo, first), actor, clock, site)

    def _read_table(self) -> npt.NDArray[np.int64]:
        """Return the reads as an array (5, n)."""
        if self._new_reads:
            new = np.array(self._new_reads, np.int64).reshape(-1, 5).T
            self._new_reads.clear()
            need = self._num_reads + new.shape[1]
            if need > self._reads.shape[1]:
                grown = np.empty((5, 2 * need), np.int64)
                grown[:, : self._num_reads] = self._reads[:, : self._num_reads]
                self._reads = grown
            self._reads[:, self._num_reads : need] = new
            self._num_reads = need
            if need > self._prune_at:
                self._prune()
        return self._reads[:, : self._num_reads]

    def _prune(self) -> None:
        """Drop the reads that happen before whatever any thread does next."""
        table = self._reads[:, : self._num_reads]
        known = self.clocks.known_to_all()
        here = (table[3] > self.clocks.start) & (table[2] < len(known))
        kept = table[:, ~(here & (known[np.where(here, table[2], 0)] >= table[3]))]
        self._num_reads = kept.shape[1]
        self._reads[:, : self._num_reads] = kept
        self._prune_at = max(_PRUNE_AT, 2 * self._num_reads)
