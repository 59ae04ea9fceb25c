"""The trace: tracks, slices, times, and a file that Perfetto reads."""

import itertools
import json

import numpy as np
import pytest

from fa_numba.device.emulator.machine import Machine
from fa_numba.device.kernel import kernel
from fa_numba.device.types import out_ptr, ptr
from tests.device import emulator_ops
from tests.device.emulator_ops import (
    bar_sync,
    base,
    copy_async,
    copy_wait,
    line_of,
    load,
    store,
    store_global,
    tid,
)

pytestmark = pytest.mark.emu


@kernel(block=64, smem_bytes=256)
def traced(x: ptr, out: out_ptr):
    """Warp 1 works longer before the barrier."""
    t = tid()
    copy_async(base() + 4 * t, x + 4 * t)
    copy_wait()
    if t >= 32:
        for _ in range(5):
            load(base() + 4 * t)  # work
    bar_sync(0, 64)  # meet
    for i in range(2):
        store(base() + 4 * t, i)  # loop
    store_global(out + 4 * t, 1.0)


def trace_of(trace, **options):
    emulator_ops.groups.clear()
    machine = Machine(policy="early", trace=trace, **options)
    machine.launch(traced, 2, (np.zeros(64, np.float32), np.zeros(64, np.float32)))
    return machine


def slices(events, **wanted):
    return [
        e
        for e in events
        if e["ph"] == "X" and all(e[key] == value for key, value in wanted.items())
    ]


def names(events, kind):
    return {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == kind
    }


@pytest.mark.parametrize("schedule", ["round_robin", "time"])
def test_warps_are_tracks_and_blocks_processes(schedule):
    events = trace_of(True, schedule=schedule).trace.events()
    processes = names(events, "process_name")
    assert set(processes.values()) == {"traced, block (0, 0, 0)", "traced, block (1, 0, 0)"}
    tracks = names(events, "thread_name")
    assert sorted(tracks.values()) == ["toy copy"] * 2 + ["warp 0"] * 2 + ["warp 1"] * 2

    def of(track, name):
        keys = [key for key, value in tracks.items() if value == track]
        pid, number = min(keys)
        return slices(events, pid=pid, tid=number, name=name)

    # One slice for all lanes, one for each time round a loop.
    assert len(of("warp 0", "bar_sync")) == 1
    assert len(of("warp 1", "load")) == 5
    assert [e["args"]["nth"] for e in of("warp 1", "store")] == [0, 1]
    (barrier_0,), (barrier_1,) = of("warp 0", "bar_sync"), of("warp 1", "bar_sync")
    assert barrier_0["args"]["at"].startswith("bar_sync at test_emulator_trace.py:")
    assert f":{line_of(traced, 'meet')}:" in barrier_0["args"]["at"]
    # Warp 0 waits for warp 1, and both leave together.
    end_0, end_1 = (e["ts"] + e["dur"] for e in (barrier_0, barrier_1))
    assert end_0 == end_1
    assert barrier_0["ts"] < barrier_1["ts"]


def test_an_engine_is_busy_with_one_thing_at_a_time():
    events = trace_of(True).trace.events()
    tracks = names(events, "thread_name")
    pid, number = min(key for key, value in tracks.items() if value == "toy copy")
    copies = sorted(slices(events, pid=pid, tid=number, name="copy"), key=lambda e: e["ts"])
    assert len(copies) == 64
    assert all(e["dur"] == 10 for e in copies)
    for before, after in itertools.pairwise(copies):
        assert after["ts"] >= before["ts"] + before["dur"]
    # Who waits goes on when the last of the warp's copies has ended, and the engine's latency.
    waits = slices(events, name="copy_wait")
    assert max(e["ts"] + e["dur"] for e in waits) >= copies[-1]["ts"] + 10 + 100


def test_threads_as_tracks():
    events = trace_of("threads").trace.events()
    tracks = set(names(events, "thread_name").values())
    assert tracks == {f"thread {i}" for i in range(64)} | {"toy copy"}
    assert len(slices(events, name="bar_sync")) == 2 * 64
    # As the op declares.
    assert {e["dur"] for e in slices(events, name="load")} == {4}


def test_the_file_is_json(tmp_path):
    machine = trace_of(True)
    path = tmp_path / "trace.json"
    machine.trace.save(path)
    content = json.loads(path.read_text())
    assert content["traceEvents"] == machine.trace.events()
    assert {"name", "ph", "ts", "dur", "pid", "tid"} <= set(content["traceEvents"][0])


def test_two_launches_are_apart():
    machine = trace_of(True)
    count = len(slices(machine.trace.events()))
    emulator_ops.groups.clear()
    machine.launch(traced, 2, (np.zeros(64, np.float32), np.zeros(64, np.float32)))
    events = machine.trace.events()
    assert len(slices(events)) == 2 * count
    assert len(names(events, "process_name")) == 4


def test_no_trace_unless_asked():
    assert trace_of(False).trace is None
    with pytest.raises(ValueError, match="accepted are False, True, 'warps', 'threads'"):
        Machine(trace="lanes")
