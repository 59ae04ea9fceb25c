"""Asynchronous engines, with a toy copy engine: missing waits, buffers reused too early."""

import numpy as np
import pytest

from fa_numba.device.emulator import Deadlock
from fa_numba.device.emulator.engines import Engine, parse_policy
from fa_numba.device.emulator.machine import Machine
from fa_numba.device.kernel import kernel
from fa_numba.device.types import int32, out_ptr, ptr
from tests.device import emulator_ops
from tests.device.emulator_ops import (
    bar_sync,
    base,
    copy_async,
    copy_wait,
    line_of,
    load,
    machine_for,
    op,
    store,
    store_global,
    the_hazard,
    tid,
)

pytestmark = pytest.mark.emu

NUM_TILES = 5
POLICIES = ["late", "early", "random", "late/early", "early/late"]


@pytest.fixture(autouse=True)
def fresh_groups():
    emulator_ops.groups.clear()


def pipeline(*, wait=True, barrier=True, stages=2):
    """Return a kernel that copies tiles through `stages` buffers, one ahead of their use."""

    @kernel(block=64, smem_bytes=256 * stages)
    def tiles(x: ptr, out: out_ptr):
        t = tid()
        copy_async(base() + 4 * t, x + 4 * t)
        for i in range(NUM_TILES):
            if wait:
                copy_wait()
            bar_sync(0, 64)
            value = load(base() + 256 * (i % stages) + 4 * (63 - t))  # read
            store_global(out + 4 * (64 * i + t), value)
            if barrier:
                bar_sync(0, 64)
            if i + 1 < NUM_TILES:
                next_stage = (i + 1) % stages
                copy_async(base() + 256 * next_stage + 4 * t, x + 4 * (64 * (i + 1) + t))  # copy
        copy_wait()

    return tiles


def run(tiles, **options):
    x = np.random.default_rng(0).standard_normal((NUM_TILES, 64)).astype(np.float32)
    out = np.full_like(x, np.nan)
    machine = machine_for(tiles, args=(x, out), **options)
    return machine, out, x[:, ::-1]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stages", [1, 2])
def test_a_clean_pipeline(policy, stages):
    for schedule in ("round_robin", "random", "time"):
        options = {"policy": policy, "schedule": schedule, "seed": stages}
        machine, out, expected = run(pipeline(stages=stages), **options)
        assert machine.hazards == []
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_missing_wait_is_found_under_every_policy(policy):
    tiles = pipeline(wait=False)
    machine, out, expected = run(tiles, policy=policy)
    also = ["unwaited", "race"]
    hazard = the_hazard(machine, "race", tiles, "read", "load", also)
    assert "written by the copy of thread" in hazard.message
    assert "(copy_async at test_emulator_engines.py:" in hazard.message
    if policy.startswith("late"):
        # What was read is the poison of a copy that has not landed.
        assert np.isnan(out).any()
    elif policy.startswith("early"):
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_buffer_reused_too_early_is_found_under_every_policy(policy):
    tiles = pipeline(barrier=False, stages=1)
    machine, out, expected = run(tiles, policy=policy)
    hazard = the_hazard(machine, "race", tiles, "copy", "copy_async", ["race"])
    assert f"(load at test_emulator_engines.py:{line_of(tiles, 'read')}: " in hazard.message
    assert "overwrites" in hazard.message
    if policy.startswith("early"):
        assert not np.array_equal(out, expected)


def test_with_two_buffers_one_barrier_a_tile_is_enough():
    machine, out, expected = run(pipeline(barrier=False, stages=2), policy="early")
    assert machine.hazards == []
    np.testing.assert_array_equal(out, expected)


def test_a_copy_that_nobody_waits_for():
    @kernel(block=32, smem_bytes=128)
    def forgets(x: ptr, wait: int32):
        copy_async(base() + 4 * tid(), x + 4 * tid())  # copy
        if wait:
            copy_wait()

    x = np.zeros(32, np.float32)
    for policy in POLICIES:
        assert machine_for(forgets, args=(x, 1), policy=policy).hazards == []
        machine = machine_for(forgets, args=(x, 0), policy=policy)
        the_hazard(machine, "unwaited", forgets, "copy", "copy_async", thread=0, count=32)


def test_a_copy_is_ordered_after_what_its_issuer_knows():
    """Overwriting the source of a copy under way is a race with the copy's read."""

    @kernel(block=32, smem_bytes=128)
    def source(x: out_ptr, wait: int32):
        t = tid()
        store_global(x + 4 * t, 1.0)
        copy_async(base() + 4 * t, x + 4 * t)
        if wait:
            copy_wait()
        store_global(x + 4 * t, 2.0)  # again
        copy_wait()
        assert load(base() + 4 * t) in (1.0, 2.0)

    for policy in POLICIES:
        x = np.zeros(32, np.float32)
        assert machine_for(source, args=(x, 1), policy=policy).hazards == []
        machine = machine_for(source, args=(x, 0), policy=policy)
        hazard = the_hazard(machine, "race", source, "again", "store_global", thread=0)
        assert "read by the copy of thread 0" in hazard.message


def test_a_destination_is_poison_from_issue_to_completion():
    @kernel(block=1, smem_bytes=16)
    def overwrites(x: ptr, out: out_ptr):
        store(base(), 1.0)
        copy_async(base(), x)
        store_global(out, load(base()))  # early
        copy_wait()
        store_global(out + 4, load(base()))

    for policy, seen in (("late", np.nan), ("early", 5.0)):
        out = np.zeros(2, np.float32)
        machine = machine_for(overwrites, args=(np.full(1, 5, np.float32), out), policy=policy)
        the_hazard(machine, "race", overwrites, "early", "load")
        np.testing.assert_array_equal(out, np.float32([seen, 5.0]))


@op("i32()")
def under_way(thread):
    return len(thread.machine.engine("toy copy").pending)


@kernel(block=32, smem_bytes=128)
def one_waits(x: ptr, counts: out_ptr, waits: int32):
    """Thread 5 waits for its copy; those of the others stay under way."""
    t = tid()
    copy_async(base() + 4 * t, x + 4 * t)
    if t == 5 and waits:
        copy_wait()
    bar_sync(0, 32)
    store_global(counts + 4 * t, float(under_way()))
    copy_wait()


def counts_under_way(waits, **options):
    emulator_ops.groups.clear()
    counts = np.zeros(32, np.float32)
    machine = machine_for(one_waits, args=(np.zeros(32, np.float32), counts, waits), **options)
    assert machine.hazards == []
    return counts


def test_late_completes_only_what_is_waited_for():
    for waits in (0, 1):
        counts = counts_under_way(waits, policy="late")
        np.testing.assert_array_equal(counts, np.full(32, 32.0 - waits))


def test_early_completes_at_once():
    np.testing.assert_array_equal(counts_under_way(0, policy="early"), np.zeros(32))


def test_random_completes_some_time():
    counts = [counts_under_way(0, policy="random", seed=seed)[31] for seed in range(40)]
    assert min(counts) < 32
    assert max(counts) == 32
    # The policy of the matrix units is not that of copies.
    counts = [counts_under_way(0, policy="late/random", seed=seed)[31] for seed in range(40)]
    assert set(counts) == {32}


def test_each_unit_follows_its_own_policy():
    """While threads run, only engines under ``"random"`` move."""
    machine = Machine("late/random")
    ended = []

    @op("void()")
    def issue(thread):
        for unit in ("copy", "matrix"):
            engine = machine.engine(unit, unit=unit)
            engine.submit(thread, unit, actions=[lambda u=unit: ended.append(u)], must_wait=False)
        while machine.progress(idle=False):
            pass
        assert ended == ["matrix"]
        assert machine.progress(idle=True)
        assert ended == ["matrix", "copy"]
        assert not machine.progress(idle=True)

    machine.launch(kernel(block=1)(_once(issue)), 1, ())
    assert len(ended) == 2


def in_order_kernel(order):
    """Return a kernel whose one thread issues pieces to a matrix unit that works in order."""

    @op("void(i32)")
    def issue(thread, number):
        engine = thread.machine.engine("matrix", unit="matrix", in_order=True)
        actions = [lambda: order.append((number, 0)), lambda: order.append((number, 1))]
        operation = engine.submit(thread, f"product {number}", actions=actions)
        emulator_ops.groups.setdefault(thread, []).append(operation)

    @op("void(i32)")
    def wait_for(thread, number):
        operation = emulator_ops.groups[thread][number]
        while not operation.done:
            thread.wait(operation, "wait_for")
        for earlier in emulator_ops.groups[thread][: number + 1]:
            earlier.acquire(thread)
        order.append("waited")

    @op("void()")
    def progress(thread):
        thread.machine.progress(idle=False)

    @kernel(block=1)
    def products():
        for i in range(3):
            issue(i)
        progress()
        progress()
        wait_for(1)
        wait_for(2)

    return products


@pytest.mark.parametrize("policy", ["early/late", "early/random", "late/early"])
def test_an_engine_in_order(policy):
    for seed in range(10):
        order = []
        emulator_ops.groups.clear()
        assert machine_for(in_order_kernel(order), policy=policy, seed=seed).hazards == []
        pieces = [entry for entry in order if entry != "waited"]
        assert pieces == [(i, piece) for i in range(3) for piece in range(2)]
    if policy == "early/late":
        # The wait for the second does not bring the third.
        assert order.index("waited") == 4


def test_pieces_land_in_any_order_if_the_engine_allows():
    landed = []

    @op("void(i32)")
    def scatter(thread, pieces):
        order = []
        landed.append(order)
        engine = thread.machine.engine("scatter")
        actions = [lambda i=i: order.append(i) for i in range(pieces)]
        operation = engine.submit(thread, "scatter", actions=actions)
        while not operation.done:
            thread.wait(operation, "scatter")
        operation.acquire(thread)

    @kernel(block=1)
    def scatters():
        for _ in range(20):
            scatter(3)

    assert machine_for(scatters, policy="late").hazards == []
    assert {tuple(order) for order in landed} == {
        (0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)
    }  # fmt: skip


def test_on_done_is_called_before_waiters_wake():
    seen = []

    @op("void()")
    def work(thread):
        engine = thread.machine.engine("work")
        operation = engine.submit(thread, "work", actions=[lambda: None], on_done=seen.append)
        while not operation.done:
            thread.wait(operation, "work")
        assert seen == [operation]
        operation.acquire(thread)

    machine_for(kernel(block=1)(_once(work)), policy="late")
    assert len(seen) == 1


def _once(work):
    def once():
        work()

    return once


def test_waiting_for_nothing_is_a_deadlock_that_names_the_wait():
    @op("void()")
    def wait_for_ever(thread):
        group = emulator_ops.CopyGroup()
        while True:
            thread.wait(group, "wait_for_ever")

    @kernel(block=1)
    def hangs():
        wait_for_ever()  # wait

    with pytest.raises(Deadlock) as error:
        machine_for(hangs)
    assert "threads 0 (1) wait at wait_for_ever: copies []" in str(error.value)
    assert "# wait" in str(error.value)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("late", ("late", "late")),
        ("early/late", ("early", "late")),
        ("random/early", ("random", "early")),
    ],
)
def test_policies(policy, expected):
    assert tuple(parse_policy(policy).values()) == expected
    machine = Machine(policy)
    assert Engine(machine, "a", unit="copy").policy == expected[0]
    assert Engine(machine, "b", unit="matrix").policy == expected[1]


@pytest.mark.parametrize("policy", ["", "soon", "late/late/late", "late/", None, 3])
def test_policies_that_do_not_exist(policy):
    with pytest.raises(ValueError, match=r"policy is .*; accepted are 'late', 'early', 'random'"):
        parse_policy(policy)
