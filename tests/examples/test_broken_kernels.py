"""Every fault of the collection is found, by the report that names it, at the line of the fault."""

import re
import sys

import broken_kernels
import numpy as np
import pytest
from broken_kernels import BROKEN, report, reverse

import fa_numba
from fa_numba.device.emulator import KINDS
from fa_numba.device.launch import launch

pytestmark = pytest.mark.emu

# What is found, at a call of which op, in a line with which text.
FOUND = {
    "missing_barrier": ("race", "load_shared_f32", "tile + 4 * (63 - i)"),
    "early_overwrite": ("race", "store_shared_f32", "tile + 4 * i"),
    "two_writers": ("double-write", "store_global_f32", "i // 2"),
    "tail_not_filled": ("uninitialised", "load_shared_f32", "63 - i"),
    "row_too_far": ("out-of-bounds", "store_global_f32", "i + 1"),
    "past_the_tile": ("out-of-bounds", "load_shared_f32", "64 - i"),
    "misaligned_vector": ("misaligned", "load_global_u32x2", "x + 4 * i"),
    "writes_its_input": ("read-only", "store_global_f32", "store_global_f32(x"),
    "row_left_out": ("unwritten", "", "def row_left_out"),
    "half_a_warp": ("divergent-barrier", "bar_sync", "bar_sync(1, 32)"),
    "two_counts": ("barrier", "bar_sync", "64 if i < 32 else 32"),
    "mask_without_me": ("shuffle-lane", "bar_warp_sync", "0xFFFF"),
    "integer_times_float": ("float64", "", "value * i"),
}
# Which threads wait where, in reports of deadlocks.
DEADLOCKS = {
    "barrier_in_a_branch": "threads 0-31 (32) wait at barrier: barrier 0, 32 of 64 threads",
    "shuffle_in_a_branch": "threads 0-15, 32-47 (32) wait at warp: 16 of 32 lanes",
    "an_arrival_too_few": "threads 32-63 (32) wait at barrier: barrier 1, 64 of 96 threads",
}
SCHEDULES = ["round_robin", "random", "time"]


def emulate(kernel, **options):
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with fa_numba.emulate(**options) as machine:
        launch(kernel, 1, (x, out), target="emulator")
    return out, machine.hazards


def test_every_kernel_has_an_expected_report():
    assert set(BROKEN) == set(FOUND) | set(DEADLOCKS)


def test_every_kind_of_hazard_that_these_ops_can_cause_is_shown():
    """Nothing is asynchronous yet; docs/device/engines.md shows the last kind."""
    assert {kind for kind, *_ in FOUND.values()} == set(KINDS) - {"unwaited"}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_is_said_about_the_right_kernel(schedule, strict):
    out, hazards = emulate(reverse, schedule=schedule, strict=strict, seed=3)
    assert hazards == []
    assert out.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", FOUND)
def test_the_fault_is_named(name, schedule):
    kind, op, text = FOUND[name]
    said = report(BROKEN[name], schedule=schedule, strict=kind == "float64")
    pattern = rf"\[{kind}\] kernel {name}\b.*\n +{f'{op} at' if op else 'at'} broken_kernels.py:.*"
    places = re.findall(pattern, said)
    assert any(text in place for place in places), said


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", DEADLOCKS)
def test_the_deadlock_is_explained(name, schedule):
    said = report(BROKEN[name], schedule=schedule)
    assert said.startswith(f"deadlock in kernel {name}: ")
    assert DEADLOCKS[name] in said


def test_the_script_prints_what_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["broken_kernels.py", "two_counts", "row_left_out"])
    broken_kernels.main()
    assert re.findall(r"^(\w+): |^\[([\w-]+)\]", capsys.readouterr().out, re.MULTILINE) == [
        ("two_counts", ""), ("", "barrier"), ("row_left_out", ""), ("", "unwritten"),
    ]  # fmt: skip
