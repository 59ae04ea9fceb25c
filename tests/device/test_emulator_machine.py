"""Launches: arguments, grids, clusters, and what a machine keeps."""

import numpy as np
import pytest

from fa_numba.device.emulator.machine import Machine
from fa_numba.device.kernel import kernel
from fa_numba.device.types import float32, int32, out_ptr, ptr, uint64
from tests.device.emulator_ops import (
    bar_sync,
    base,
    block_x,
    load,
    machine_for,
    op,
    store,
    store_global,
    tid,
)

pytestmark = pytest.mark.emu


def test_every_block_and_thread_of_a_grid_runs_once():
    seen = []

    @op("void()")
    def record(thread):
        seen.append((thread.block.index, thread.index, thread.tid, thread.grid, thread.block.dim))

    @kernel(block=(4, 3, 2))
    def records():
        record()

    machine_for(records, (3, 2, 2))
    assert len(seen) == 12 * 24
    assert len({(block, index) for block, index, *_ in seen}) == 12 * 24
    for block, (x, y, z), tid_, grid, dim in seen:
        assert all(0 <= i < n for i, n in zip(block, (3, 2, 2), strict=True))
        assert tid_ == x + 4 * (y + 3 * z)
        assert (grid, dim) == ((3, 2, 2), (4, 3, 2))
    # Blocks run one after another, x fastest.
    order = list(dict.fromkeys(block for block, *_ in seen))
    assert order == [(x, y, z) for z in range(2) for y in range(2) for x in range(3)]


def test_numbers_are_converted_to_their_types():
    seen = []

    @kernel(block=1)
    def look(n: int32, x: float32, address: uint64, pointer: ptr):
        seen.extend([n, x, address, pointer])

    machine_for(look, args=(np.int64(7), 0.1, 1 << 63, 0))
    assert seen == [7, np.float32(0.1), 1 << 63, 0]
    assert [type(value) for value in seen] == [int, np.float32, int, int]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((1,), "takes 2 arguments, got 1"),
        ((1, 2, 3), "takes 2 arguments, got 3"),
        (("a", 1), "argument x of look is a str; accepted in the emulator is a NumPy array or 0"),
        ((0, [1]), "argument n of look is a list; accepted in the emulator is a number"),
        ((0, np.zeros(1)), "argument n of look is a ndarray"),
    ],
)
def test_wrong_arguments(args, message):
    @kernel(block=1)
    def look(x: ptr, n: int32):
        pass

    with pytest.raises(TypeError, match=message):
        machine_for(look, args=args)


def test_each_block_has_fresh_shared_memory():
    @kernel(block=32, smem_bytes=128)
    def leaks(out: out_ptr):
        t = tid()
        if block_x() == 0:
            store(base() + 4 * t, 5.0)
        store_global(out + 4 * (32 * block_x() + t), load(base() + 4 * t))

    out = np.zeros((2, 32), np.float32)
    machine = machine_for(leaks, 2, (out,))
    assert (out[0] == 5).all()
    assert np.isnan(out[1]).all()
    assert [(h.kind, h.block) for h in machine.hazards] == [("uninitialised", (1, 0, 0))]


def test_a_hazard_is_listed_once_and_counted():
    @kernel(block=32, smem_bytes=128)
    def reads():
        load(base() + 4 * tid())
        load(base() + 4 * tid())

    machine = machine_for(reads, 3)
    assert [h.count for h in machine.hazards] == [96, 96]
    machine.launch(reads, 1, ())
    assert [h.count for h in machine.hazards] == [128, 128]


def remote_store(ordered):
    """Return a kernel whose blocks write into the shared memory of their neighbour."""

    @op("void(u32, f32)")
    def store_remote(thread, address, value):
        other = thread.block.cluster[thread.block.rank ^ 1]
        other.shared.write(thread, address, np.float32([value]).view(np.uint8), 4)

    @op("void()")
    def cluster_sync(thread):
        meeting = thread.machine.engines.setdefault("toy cluster", Meeting())
        meeting.arrive(thread)

    @kernel(block=32, smem_bytes=128)
    def neighbours(out: out_ptr):
        t = tid()
        store(base() + 4 * t, -1.0)
        cluster_sync()
        store_remote(base() + 4 * t, 100.0 * block_x() + t)
        if ordered:
            cluster_sync()
        else:
            bar_sync(0, 32)
        store_global(out + 4 * (32 * block_x() + t), load(base() + 4 * (31 - t)))

    return neighbours


class Meeting:
    """A toy barrier of all threads of a cluster; in the machine's engines to live as long."""

    policy = "late"

    def __init__(self):
        self.waiters = []
        self.arrived = []
        self.generation = 0

    def arrive(self, thread):
        self.arrived.append(thread)
        generation = self.generation
        if len(self.arrived) == sum(len(block.threads) for block in thread.block.cluster):
            thread.block.clocks.join(self.arrived)
            self.arrived = []
            self.generation += 1
            thread.machine.notify(self)
        while self.generation == generation:
            thread.wait(self, "cluster")

    def candidates(self):
        return []

    wanted = candidates

    def finish(self):
        pass

    clear = finish


def test_blocks_of_a_cluster_run_together():
    for schedule in ("round_robin", "random"):
        out = np.zeros((4, 32), np.float32)
        machine = Machine(schedule=schedule)
        machine.launch(remote_store(ordered=True), 4, (out,), cluster=2)
        assert machine.hazards == []
        expected = 100.0 * np.array([[1], [0], [3], [2]]) + 31 - np.arange(32)
        np.testing.assert_array_equal(out, expected.astype(np.float32))


def test_a_barrier_of_one_block_does_not_order_its_cluster():
    found = set()
    for seed in range(5):
        machine = Machine(schedule="random", seed=seed)
        args = (np.zeros((2, 32), np.float32),)
        machine.launch(remote_store(ordered=False), 2, args, cluster=2)
        assert machine.hazards
        assert {h.kind for h in machine.hazards} == {"race"}
        found |= {h.op for h in machine.hazards}
        assert any("of block (" in h.message for h in machine.hazards)
    assert found == {"load", "store_remote"}


def test_a_grid_that_clusters_do_not_divide():
    with pytest.raises(ValueError, match="its x must be a multiple of cluster=2"):
        Machine().launch(remote_store(ordered=True), 3, (np.zeros(96, np.float32),), cluster=2)


def test_a_schedule_that_does_not_exist():
    with pytest.raises(ValueError, match="accepted are round_robin, random, time"):
        Machine(schedule="fifo")
