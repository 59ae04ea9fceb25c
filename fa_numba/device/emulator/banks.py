"""Bank conflicts of shared memory, counted as the hardware has them.

Shared memory has 32 banks of 4 bytes, and serves a warp's access in turns (*wavefronts*). In one
turn each bank gives one word; lanes that want the same word share it. Accesses of 4 bytes and less
are served a whole warp at a time, those of 8 bytes half a warp, of 16 bytes a quarter (a turn moves
128 bytes at most). `fa_numba.indexing.swizzle.num_wavefronts` counts the same for one access.

The lanes of a warp run one after the other here, so what they did together is found afterwards: the
n-th access of each lane at one place of the kernel is one access of the warp.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_numba.device.emulator.barriers import WARP_SIZE
from fa_numba.device.emulator.sites import Site, Sites
from fa_numba.indexing.swizzle import BANK_BYTES, NUM_BANKS

__all__ = ["BankCount", "BankCounter"]

Ints = np.ndarray[Any, np.dtype[np.int64]]

_TURN_BYTES = NUM_BANKS * BANK_BYTES

# Numbers kept before they are counted: 64 MiB.
_MAX_WAITING = 8 << 20


@dataclass(frozen=True, slots=True)
class BankCount:
    """The shared-memory accesses of one place of a kernel.

    Attributes
    ----------
    site : Site
        Op and line.
    accesses : int
        Of warps.
    wavefronts : int
        Turns that they took.
    ideal : int
        Turns without any conflict.
    """

    site: Site
    accesses: int
    wavefronts: int
    ideal: int

    @property
    def conflicts(self) -> int:
        """Turns lost."""
        return self.wavefronts - self.ideal

    def __str__(self) -> str:
        """Return the counts and the place."""
        return (
            f"{self.accesses} warp accesses, {self.wavefronts} wavefronts, "
            f"{self.conflicts} lost to bank conflicts: {self.site}"
        )


class BankCounter:
    """Counts bank conflicts by place, when somebody asks."""

    def __init__(self) -> None:
        self._blocks: list[Ints] = []
        self._num_waiting = 0
        self._counts: dict[int, Ints] = {}

    def add_block(self, accesses: list[int]) -> None:
        """Take the accesses of a block: four numbers each, thread, site, offset and width."""
        if accesses:
            self._blocks.append(np.array(accesses, np.int64).reshape(-1, 4))
            self._num_waiting += len(accesses)
            if self._num_waiting > _MAX_WAITING:
                self._count()

    def counts(self, sites: Sites) -> list[BankCount]:
        """Return the counts, the worst place first."""
        self._count()
        found = [
            BankCount(sites.site(number), *counts.tolist())
            for number, counts in self._counts.items()
        ]
        return sorted(found, key=lambda count: -count.conflicts)

    def _count(self) -> None:
        for block in self._blocks:
            for number, counts in _count_block(*block.T):
                self._counts[number] = self._counts.get(number, 0) + counts
        self._blocks.clear()
        self._num_waiting = 0


def _count_block(thread: Ints, site: Ints, offset: Ints, width: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield accesses, wavefronts and ideal wavefronts for each site."""
    warp, lane = np.divmod(thread, WARP_SIZE)
    nth = _occurrences(site * (thread.max() + 1) + thread)
    access = _numbered((site * (nth.max() + 1) + nth) * WARP_SIZE + warp)
    # A turn serves the lanes of one group of one access.
    group = np.where(width > BANK_BYTES, lane * width // _TURN_BYTES, 0)
    turn = _numbered((access * WARP_SIZE + width) * WARP_SIZE + group)
    wavefronts, ideal = _turns(turn, offset, width)
    site_of_turn = np.empty(len(wavefronts), np.int64)
    site_of_turn[turn] = site
    site_of_access = np.empty(int(access.max()) + 1, np.int64)
    site_of_access[access] = site
    accesses = np.bincount(site_of_access)
    for number in np.flatnonzero(accesses).tolist():
        here = site_of_turn == number
        counts = [accesses[number], wavefronts[here].sum(), ideal[here].sum()]
        yield number, np.array(counts, np.int64)


def _occurrences(keys: Ints) -> Ints:
    """Return for each element how many equal ones stand before it."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(starts, len(keys)))
    result = np.empty(len(keys), np.int64)
    result[order] = np.arange(len(keys)) - np.repeat(starts, lengths)
    return result


def _numbered(keys: Ints) -> Ints:
    """Number the distinct keys, from 0 on."""
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def _turns(turn: Ints, offset: Ints, width: Ints) -> tuple[Ints, Ints]:
    """Return, for each group of lanes, the turns that it takes and those that it must take."""
    words = (offset + width - 1) // BANK_BYTES - offset // BANK_BYTES + 1
    first = np.cumsum(words) - words
    step = np.arange(int(words.sum())) - np.repeat(first, words)
    word = np.repeat(offset // BANK_BYTES, words) + step
    span = int(word.max()) + 1
    owner, word = np.divmod(np.unique(np.repeat(turn, words) * span + word), span)
    num_turns = int(turn.max()) + 1
    hits = np.bincount(owner * NUM_BANKS + word % NUM_BANKS, minlength=num_turns * NUM_BANKS)
    table = hits.reshape(num_turns, NUM_BANKS)
    return table.max(axis=1), -(-table.sum(axis=1) // NUM_BANKS)
