"""Bank conflicts, counted for kernels and against the count of a single access."""

import random

import pytest

from fa_numba.device.emulator import banks
from fa_numba.device.emulator.banks import BankCounter
from fa_numba.device.kernel import kernel
from fa_numba.device.types import int32
from fa_numba.indexing.swizzle import num_wavefronts, swizzle
from tests.device.emulator_ops import (
    bar_sync,
    base,
    line_of,
    load,
    load4,
    machine_for,
    store4,
    sum_range,
    tid,
)

pytestmark = pytest.mark.emu


@kernel(block=64, smem_bytes=8192)
def strided(stride: int32, span: int32):
    """Each lane writes and reads 16 bytes of a row; a warp reads 32 rows."""
    t = tid()
    at = base() + swizzle(stride * t, span)
    store4(at, 1.0)
    bar_sync(0, 64)
    load4(at)  # vector
    load(at)  # scalar


def counts_of(machine):
    return {(c.site.op, c.site.line): c for c in machine.bank_conflicts}


def test_a_column_of_wide_rows_conflicts_and_a_swizzle_cures_it():
    plain = counts_of(machine_for(strided, args=(128, 16)))
    vector = plain["load4", line_of(strided, "vector")]
    # A quarter warp of 8 lanes: all in the same four banks.
    assert (vector.accesses, vector.wavefronts, vector.ideal) == (2, 2 * 4 * 8, 2 * 4)
    assert vector.conflicts == 56
    scalar = plain["load", line_of(strided, "scalar")]
    assert (scalar.accesses, scalar.wavefronts, scalar.ideal) == (2, 2 * 32, 2)
    assert "2 warp accesses, 64 wavefronts, 56 lost" in str(vector)

    swizzled = counts_of(machine_for(strided, args=(128, 128)))
    assert swizzled["load4", line_of(strided, "vector")].conflicts == 0
    assert swizzled["load", line_of(strided, "scalar")].wavefronts == 2 * 4


def test_the_worst_comes_first_and_launches_add_up():
    machine = machine_for(strided, args=(128, 16))
    first = machine.bank_conflicts
    assert [c.conflicts for c in first] == sorted((c.conflicts for c in first), reverse=True)
    machine.launch(strided, 3, (128, 16))
    assert [c.wavefronts for c in machine.bank_conflicts] == [4 * c.wavefronts for c in first]


def test_lanes_that_read_one_word_share_a_turn():
    @kernel(block=32, smem_bytes=128)
    def broadcast():
        load(base())

    (count,) = machine_for(broadcast).bank_conflicts
    assert (count.accesses, count.wavefronts, count.ideal) == (1, 1, 1)


def test_a_loop_is_as_many_accesses_and_branches_are_theirs():
    """The n-th time that lanes pass a line is one access, though some pass it less often."""

    @kernel(block=32, smem_bytes=4096)
    def loop():
        t = tid()
        for i in range(3 if t < 16 else 5):
            load(base() + 128 * i + 4 * t)

    for schedule in ("round_robin", "random"):
        (count,) = machine_for(loop, schedule=schedule).bank_conflicts
        assert (count.accesses, count.wavefronts) == (5, 5)


def test_composite_reads_are_not_counted():
    @kernel(block=32, smem_bytes=4096)
    def composite():
        sum_range(base(), 1024)

    assert machine_for(composite).bank_conflicts == []


@pytest.mark.parametrize("limit", [1 << 30, 100])
def test_random_accesses_against_the_count_of_one(monkeypatch, limit):
    monkeypatch.setattr(banks, "_MAX_WAITING", limit)
    rng = random.Random(0)
    expected = {1: [0, 0], 2: [0, 0], 3: [0, 0]}
    counter = BankCounter()
    for _ in range(10):
        lanes = {}
        for _ in range(6):
            site, warp = rng.choice([1, 2, 3]), rng.randrange(3)
            width = {1: 4, 2: 8, 3: 16}[site]
            addresses = [width * rng.randrange(64) for _ in range(32)]
            expected[site][0] += 1
            expected[site][1] += num_wavefronts(addresses, width)
            for lane, address in enumerate(addresses):
                lanes.setdefault(32 * warp + lane, []).append((site, address, width))
        accesses = []
        # Each thread's accesses in order, the threads mixed.
        while lanes:
            thread = rng.choice(list(lanes))
            accesses.extend((thread, *lanes[thread].pop(0)))
            if not lanes[thread]:
                del lanes[thread]
        counter.add_block(accesses)
    found = {c.site: [c.accesses, c.wavefronts] for c in counter.counts(SameSites())}
    assert found == expected


class SameSites:
    """Sites whose places are their numbers."""

    def site(self, number):
        return number
