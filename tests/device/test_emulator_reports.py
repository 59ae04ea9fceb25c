"""Texts that concern many threads."""

import pytest

from fa_numba.device.emulator import Deadlock
from fa_numba.device.emulator.clocks import Actor, Clocks
from fa_numba.device.emulator.reports import ActorNames, ranges_text
from fa_numba.device.kernel import kernel
from tests.device.emulator_ops import bar_sync, base, line_of, load, machine_for, tid

pytestmark = pytest.mark.emu


class Plain(Actor):
    """A thread or an operation with nothing but a clock."""


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0, 2-3, 7")],
)
def test_ranges(numbers, text):
    assert ranges_text(numbers) == text


def test_names_of_past_blocks():
    names = ActorNames()
    last, moments = 1, []
    for block in range(4):
        threads = [Plain() for _ in range(6)]
        clocks = Clocks(threads, last)
        # Two blocks of three threads.
        names.add(clocks, [(2 * block, 0, 0), (2 * block + 1, 0, 0)], 3)
        for _ in range(block):
            clocks.join(threads)
        operation = Plain()
        clocks.fork(threads[0], operation, f"the copy of block {2 * block}")
        moments.append([(a.actor, a.clock) for a in (*threads, operation)])
        last = clocks.last
    for block, (*threads, operation) in enumerate(moments):
        for i, (actor, clock) in enumerate(threads):
            owner = (2 * block + i // 3, 0, 0)
            assert names.name(actor, clock, owner) == f"thread {i % 3}"
            assert names.name(actor, clock, None) == f"thread {i % 3} of block {owner}"
        assert names.name(*operation, None) == f"the copy of block {2 * block}"


def test_a_deadlock_report_groups_threads_and_lists_hazards():
    @kernel(block=96, smem_bytes=16)
    def stuck():
        t = tid()
        load(base())  # read
        if t < 32:
            return
        if t < 64:
            bar_sync(1, 96)  # one
        else:
            bar_sync(2, 64)  # two

    with pytest.raises(Deadlock) as error:
        machine_for(stuck)
    file, block = "test_emulator_reports.py", "  block (0, 0, 0), threads"
    assert str(error.value) == (
        "deadlock in kernel stuck: no thread can run and nothing asynchronous is under way\n"
        f"{block} 0-31 (32) have finished\n"
        f"{block} 32-63 (32) wait at barrier: barrier 1, 32 of 96 threads arrived\n"
        f"    bar_sync at {file}:{line_of(stuck, 'one')}: bar_sync(1, 96)  # one\n"
        f"{block} 64-95 (32) wait at barrier: barrier 2, 32 of 64 threads arrived\n"
        f"    bar_sync at {file}:{line_of(stuck, 'two')}: bar_sync(2, 64)  # two\n"
        "found before:\n"
        "  [uninitialised] kernel stuck, block (0, 0, 0), thread 0: reads the byte at 0x410 "
        "(offset 0) of shared memory, which nothing has written (96 times)\n"
        f"    load at {file}:{line_of(stuck, 'read')}: load(base())  # read"
    )
