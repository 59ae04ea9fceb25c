"""Vector clocks: what follows from a barrier, an arrival, an asynchronous operation."""

import numpy as np
import pytest

from fa_numba.device.emulator.clocks import Actor, Clocks

pytestmark = pytest.mark.emu


class Plain(Actor):
    """A thread or an operation with nothing but a clock."""


def make(count, start=0):
    threads = [Plain() for _ in range(count)]
    return Clocks(threads, start), threads


def knows(clocks, who, moment):
    return clocks.is_before(who, *moment)


def test_a_thread_knows_itself_and_nobody_else():
    clocks, threads = make(3)
    for who in threads:
        for other in threads:
            assert knows(clocks, who, (other.actor, other.clock)) == (who is other)


def test_a_join_tells_all_and_only_what_was_before_it():
    clocks, (a, b, c) = make(3)
    before = (a.actor, a.clock)
    clocks.join([a, b])
    after = (a.actor, a.clock)
    assert knows(clocks, b, before)
    assert not knows(clocks, b, after)
    assert not knows(clocks, c, before)
    # Knowledge is handed on.
    clocks.join([b, c])
    assert knows(clocks, c, before)
    assert not knows(clocks, c, after)


def test_release_and_acquire_go_one_way():
    clocks, (a, b) = make(2)
    moment_a, moment_b = (a.actor, a.clock), (b.actor, b.clock)
    row = clocks.release(a)
    later = (a.actor, a.clock)
    clocks.acquire(b, row)
    assert knows(clocks, b, moment_a)
    assert not knows(clocks, b, later)
    assert not knows(clocks, a, moment_b)


def test_an_operation_knows_its_issuer_up_to_its_issue():
    clocks, (a, b) = make(2)
    before = (a.actor, a.clock)
    operation = Plain()
    clocks.fork(a, operation, "copy")
    after = (a.actor, a.clock)
    assert knows(clocks, operation, before)
    assert not knows(clocks, operation, after)
    moment = (operation.actor, operation.clock)
    assert not knows(clocks, a, moment)
    clocks.acquire(b, operation.row)
    assert knows(clocks, b, moment)
    assert knows(clocks, b, before)
    assert not knows(clocks, b, after)


def test_a_column_is_used_again_only_after_its_operation_was_waited_for():
    clocks, (a, b) = make(2)
    first, second, third = Plain(), Plain(), Plain()
    clocks.fork(a, first, "first")
    clocks.fork(a, second, "second")
    assert second.actor != first.actor
    clocks.acquire(a, first.row)
    clocks.fork(a, third, "third")
    assert third.actor == first.actor
    # Who waits for the first learns nothing of the third.
    clocks.acquire(b, first.row)
    assert knows(clocks, b, (first.actor, first.clock))
    assert not knows(clocks, b, (third.actor, third.clock))
    names = clocks.column_names
    assert names[first.actor - 2] == {first.clock: "first", third.clock: "third"}


def test_many_operations_under_way():
    """More columns than there were at first; rows given out before stay right."""
    clocks, (a, b) = make(2)
    operations = [Plain() for _ in range(40)]
    for operation in operations:
        clocks.fork(a, operation, "copy")
    assert len({operation.actor for operation in operations}) == 40
    clocks.acquire(b, operations[3].row)
    known = [knows(clocks, b, (o.actor, o.clock)) for o in operations]
    assert known == [i == 3 for i in range(40)]
    # A narrow row of long ago is compared with a late column.
    assert not knows(clocks, operations[0], (operations[-1].actor, operations[-1].clock))
    clocks.join([a, b], operations[39].row)
    assert knows(clocks, a, (operations[39].actor, operations[39].clock))


def test_clocks_of_another_block_are_unknown():
    first, (a, _) = make(2)
    moment = (a.actor, a.clock)
    second, threads = make(2, first.last)
    assert not any(knows(second, t, moment) for t in threads)
    assert knows(second, threads[0], (threads[0].actor, threads[0].clock))


def test_arrays_are_compared_like_single_moments():
    clocks, threads = make(4)
    clocks.join(threads[:2])
    clocks.fork(threads[0], Plain(), "copy")
    actors = np.repeat(np.arange(6), 6)
    moments = np.tile(np.arange(6), 6)
    for who in threads:
        expected = [clocks.is_before(who, *m) for m in zip(actors, moments, strict=True)]
        assert clocks.are_before(who, actors, moments).tolist() == expected


def test_what_all_know():
    clocks, threads = make(3)
    clock = threads[0].clock
    clocks.join(threads[:2])
    assert clocks.known_to_all()[0] < clock
    clocks.join(threads[1:])
    assert clocks.known_to_all()[0] == clock
