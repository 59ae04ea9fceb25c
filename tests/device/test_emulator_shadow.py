"""Races against brute force: random programs, every access compared with all that came before."""

import random

import pytest

from fa_numba.device.emulator.clocks import Actor, Clocks
from fa_numba.device.emulator.shadow import Shadow

pytestmark = pytest.mark.emu

NUM_BYTES = 64
RACES = {"read-write", "write-read", "write-write"}


class Plain(Actor):
    """A thread or an operation with nothing but a clock."""


class Program:
    """A random program under the shadow and under brute force, step by step.

    Brute force keeps, for every actor, the set of all accesses that happen before its next one.
    """

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.threads = [Plain() for _ in range(self.rng.choice([2, 3, 5]))]
        self.clocks = Clocks(self.threads, start=self.rng.choice([0, 17]))
        self.found = []
        self.shadow = Shadow(NUM_BYTES, self.clocks, lambda *report: self.found.append(report))
        self.past = {t: frozenset() for t in self.threads}
        self.operations = []
        # All accesses, as (number, is_write, bytes), and the bytes that have raced: a byte's first
        # race is always found, later ones may not be, so it is left alone afterwards.
        self.accesses = []
        self.spoilt = set()
        self.written = set()
        self.num_races = 0

    def access(self, who, past, *, outside):
        is_write = self.rng.random() < 0.4
        width = self.rng.choice([1, 2, 4, 8])
        lo = self.rng.randrange(0, NUM_BYTES - width + 1)
        span = set(range(lo, lo + width))
        if span & self.spoilt:
            return past
        races = set()
        for number, other_writes, other_span in self.accesses:
            if (is_write or other_writes) and number not in past:
                races |= span & other_span
        unread = set() if is_write else span - self.written
        self.found.clear()
        names = ("write" if is_write else "read") + ("_outside" if outside else "")
        getattr(self.shadow, names)(who, lo, lo + width, 0)
        # A report names one byte of a conflict, not all.
        for expected, kinds in ((races, RACES), (unread, {"uninitialised"})):
            named = {byte for kind, _, byte, *_ in self.found if kind in kinds}
            assert named <= expected
            assert bool(named) == bool(expected)
        self.num_races += bool(races)
        self.spoilt |= races
        if is_write:
            self.written |= span
        number = len(self.accesses)
        self.accesses.append((number, is_write, span))
        return past | {number}

    def step(self):
        choice = self.rng.random()
        thread = self.rng.choice(self.threads)
        if choice < 0.6:
            self.past[thread] = self.access(thread, self.past[thread], outside=False)
        elif choice < 0.8:
            count = self.rng.choice([2, len(self.threads), len(self.threads)])
            group = self.rng.sample(self.threads, min(count, len(self.threads)))
            self.clocks.join(group)
            if len(group) == len(self.threads):
                self.shadow.settle(group[0])
            together = frozenset().union(*(self.past[t] for t in group))
            for t in group:
                self.past[t] = together
        elif choice < 0.88:
            other = self.rng.choice(self.threads)
            row = self.clocks.release(thread)
            self.clocks.acquire(other, row)
            self.past[other] |= self.past[thread]
        elif choice < 0.95:
            operation = Plain()
            self.clocks.fork(thread, operation, "copy")
            past = self.past[thread]
            for _ in range(self.rng.choice([1, 2])):
                past = self.access(operation, past, outside=True)
            self.operations.append((operation, past))
        elif self.operations:
            operation, past = self.rng.choice(self.operations)
            self.clocks.acquire(thread, operation.row)
            self.past[thread] |= past


def test_every_race_is_found_and_nothing_else():
    races = clean = 0
    for seed in range(300):
        program = Program(seed)
        for _ in range(program.rng.choice([10, 40, 120])):
            program.step()
        races += program.num_races
        clean += program.num_races == 0
    assert races > 500
    assert clean > 30


def test_old_reads_are_thrown_out(monkeypatch):
    """The table of reads stays small where barriers of a part of the block order them."""
    import fa_numba.device.emulator.shadow as module

    monkeypatch.setattr(module, "_PRUNE_AT", 16)
    threads = [Plain() for _ in range(4)]
    clocks = Clocks(threads)
    found = []
    shadow = Shadow(64, clocks, lambda *report: found.append(report))
    shadow.initialise(0, 64)
    for _ in range(50):
        for i in range(4):
            shadow.read(threads[i], 8 * i, 8 * i + 8, 0)
        # All know all, without one barrier of all.
        clocks.join(threads[:2])
        clocks.join(threads[2:])
        clocks.join(threads[1:3])
        clocks.join(threads[:2])
        clocks.join(threads[2:])
        shadow.write(threads[0], 8, 16, 0)
        clocks.join(threads[:2])
        clocks.join(threads[1:])
    assert found == []
    assert shadow._read_table().shape[1] <= 24
    # What is kept is still good: a read by thread 3 that thread 0 does not know.
    shadow.read(threads[3], 8, 9, 5)
    shadow.write(threads[0], 8, 9, 0)
    assert [(f[0], f[3], f[5]) for f in found] == [("read-write", 3, 5)]


@pytest.mark.parametrize("width", [8, 500])
def test_long_ranges_find_a_single_byte(width):
    threads = [Plain(), Plain()]
    clocks = Clocks(threads)
    found = []
    shadow = Shadow(1024, clocks, lambda *report: found.append(report))
    for byte in (100, 100 + width - 1):
        shadow.initialise(100, 100 + width)
        shadow.write(threads[0], byte, byte + 1, 7)
        shadow.read(threads[1], 100, 100 + width, 0)
        assert [(f[0], f[2], f[3], f[5]) for f in found] == [("write-read", byte, 0, 7)]
        clocks.join(threads)
        shadow.settle(threads[0])
        shadow.read(threads[1], 100, 100 + width, 0)
        assert len(found) == 1
        clocks.join(threads)
        found.clear()


def test_unwritten_bytes():
    threads = [Plain()]
    shadow = Shadow(8, Clocks(threads), lambda *report: None)
    shadow.write(threads[0], 2, 4, 0)
    shadow.settle(threads[0])
    shadow.initialise(7, 8)
    assert shadow.unwritten(1, 8).tolist() == [True, False, False, True, True, True, False]
