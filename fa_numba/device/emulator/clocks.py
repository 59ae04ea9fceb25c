"""Vector clocks: what each thread knows of the others.

A thread has a clock of its own, which moves on whenever it hands something over (at a barrier, an
arrival, an asynchronous operation). Row ``t`` of the matrix holds how far thread ``t`` knows every
other one: an access of thread ``u`` at clock ``c`` happens before what ``t`` does now exactly if
``rows[t, u] >= c``. Waiting joins rows (Lamport 1978; Mattern 1989; for race detection: Flanagan
and Freund, "FastTrack", PLDI 2009).

An asynchronous operation is an actor like a thread, in a column of its own: it starts with what its
issuer knows, and who waits for it learns that it has happened. Columns are used again, by an
operation that starts after its predecessor in the column was waited for: then the order within a
column is an order in time, as it is within a thread.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Actor", "Clocks"]

Row = npt.NDArray[np.int32]


class Actor:
    """Something that uses memory: a thread or an asynchronous operation.

    Attributes
    ----------
    actor : int
        Its column.
    clock : int
        Its own time.
    row : ndarray
        What it knows of every actor.
    """

    __slots__ = ("actor", "clock", "row")

    actor: int
    clock: int
    row: Row

    def origin(self) -> Any:
        """Return the thread that acts or has issued the operation, and the number of the line."""
        raise NotImplementedError


class Clocks:
    """The clocks of the threads that run together: a block's, or a cluster's.

    Parameters
    ----------
    threads : sequence of Actor
        Gets its columns in order.
    start : int
        All clocks begin above it. A launch gives each block a start above the last clock of the one
        before it: an access of another block is known by its clock.

    Attributes
    ----------
    last : int
        No clock is above it.
    column_names : list of dict
        For each column after those of the threads, the names of its operations by clock.
    """

    def __init__(self, threads: Sequence[Actor], start: int = 0) -> None:
        self.start = start
        self.last = start + 1
        self._threads = list(threads)
        self._rows: Row = np.full((len(threads), len(threads)), start, np.int32)
        np.fill_diagonal(self._rows, start + 1)
        self._column_clocks: list[int] = []
        self.column_names: list[dict[int, str]] = []
        for i, thread in enumerate(threads):
            thread.actor = i
            thread.clock = start + 1
        self._give_rows()

    def is_before(self, who: Actor, actor: int, clock: int) -> bool:
        """Tell whether an access by `actor` at `clock` happens before what `who` does now."""
        return clock > self.start and actor < len(who.row) and bool(who.row[actor] >= clock)

    def are_before(self, who: Actor, actors: Row, clocks: Row) -> npt.NDArray[np.bool]:
        """Do the same as `is_before` for arrays of accesses."""
        here = (clocks > self.start) & (actors < len(who.row))
        return here & (who.row[np.where(here, actors, 0)] >= clocks)

    def join(self, threads: Sequence[Actor], also: Row | None = None) -> Row:
        """Let threads meet: each knows afterwards what all did before.

        Parameters
        ----------
        threads : sequence of Actor
            Who meets.
        also : ndarray, optional
            Rows released to the meeting earlier (`release`), joined.

        Returns
        -------
        ndarray
            What all of them know now.
        """
        index = np.array([thread.actor for thread in threads])
        merged = self._rows[index].max(axis=0)
        if also is not None:
            np.maximum(merged[: len(also)], also, out=merged[: len(also)])
        self._rows[index] = merged
        self._rows[index, index] += 1
        for thread in threads:
            thread.clock += 1
        self.last = max(self.last, int(self._rows[index, index].max()))
        return merged

    def release(self, thread: Actor) -> Row:
        """Return a copy of what a thread knows, to be acquired by others, and move its clock on."""
        row: Row = thread.row.copy()
        thread.clock += 1
        thread.row[thread.actor] = thread.clock
        self.last = max(self.last, thread.clock)
        return row

    def acquire(self, thread: Actor, row: Row) -> None:
        """Let a thread learn what was released."""
        np.maximum(thread.row[: len(row)], row, out=thread.row[: len(row)])

    def fork(self, issuer: Actor, operation: Actor, name: str) -> None:
        """Start an asynchronous operation: all that its issuer knows happens before it.

        Parameters
        ----------
        issuer : Actor
            The thread.
        operation : Actor
            Gets a column, a clock and a row.
        name : str
            Names the operation in reports.
        """
        first = len(self._threads)
        for i, clock in enumerate(self._column_clocks):
            if issuer.row[first + i] >= clock:
                column = i
                break
        else:
            column = self._add_column()
        clock = max(self._column_clocks[column], self.start) + 1
        self._column_clocks[column] = clock
        self.column_names[column][clock] = name
        self.last = max(self.last, clock)
        row = self.release(issuer)
        row[first + column] = clock
        operation.actor, operation.clock, operation.row = first + column, clock, row

    def known_to_all(self) -> Row:
        """Return, for every actor, the clock up to which all threads know it."""
        known: Row = self._rows.min(axis=0)
        return known

    def _add_column(self) -> int:
        used = len(self._column_clocks)
        if len(self._threads) + used == self._rows.shape[1]:
            more = np.full((len(self._threads), max(8, used)), self.start, np.int32)
            self._rows = np.concatenate([self._rows, more], axis=1)
            self._give_rows()
        self._column_clocks.append(self.start)
        self.column_names.append({})
        return used

    def _give_rows(self) -> None:
        for thread, row in zip(self._threads, self._rows, strict=True):
            thread.row = row
