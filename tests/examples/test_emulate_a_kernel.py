"""The transpose of the examples: right, without hazards, its bank conflicts as computed."""

import json
import sys

import emulate_a_kernel
import numpy as np
import pytest
from emulate_a_kernel import TILE, make_transpose, transpose, transpose_on_gpu

from fa_numba.indexing.swizzle import num_wavefronts

SHAPES = [(1, 1), (32, 32), (45, 70), (31, 65), (64, 33)]


def numbers(shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.emu
@pytest.mark.parametrize("schedule", ["round_robin", "random", "time"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_result_is_the_transpose_and_nothing_is_found(shape, schedule):
    x = numbers(shape)
    out, machine = transpose(x, TILE + 1, schedule=schedule)
    assert machine.hazards == []
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.emu
@pytest.mark.parametrize("pitch", [32, 33, 34, 36])
def test_bank_conflicts_are_those_of_the_layout(pitch):
    _, machine = transpose(numbers((32, 32)), pitch)
    counted = {c.site.op: (c.accesses, c.wavefronts) for c in machine.bank_conflicts}
    column = num_wavefronts([4 * pitch * lane for lane in range(32)], 4)
    assert counted == {"store_shared_f32": (32, 32), "load_shared_f32": (32, 32 * column)}


@pytest.mark.emu
def test_the_script_reports_both_pitches_and_writes_the_trace(tmp_path, monkeypatch, capsys):
    path = tmp_path / "trace.json"
    arguments = ["--rows", "33", "--cols", "20", "--trace", str(path)]
    monkeypatch.setattr(sys, "argv", ["emulate_a_kernel.py", *arguments])
    emulate_a_kernel.main()
    printed = capsys.readouterr().out
    assert "pitch 32: the result is right, 0 hazards" in printed
    assert "pitch 33: the result is right, 0 hazards" in printed
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"load_global_f32", "syncthreads", "store_global_f32"} <= names
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {"transpose, block (0, 0, 0)", "transpose, block (0, 1, 0)"}


@pytest.mark.compile
@pytest.mark.parametrize("target", ["sm_75", "sm_90a"])
def test_the_same_function_compiles(target):
    from fa_numba.device.compile import compile_kernel
    from fa_numba.device.resources import float64_lines, resources

    kernel = make_transpose(TILE + 1)
    compiled = compile_kernel(kernel, target)
    needed = resources(kernel, compiled)
    assert needed.problems() == []
    assert needed.shared_bytes == 4 * 32 * 33
    assert float64_lines(compiled.ptx) == []


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_same_function_runs_on_the_gpu(cp, shape):
    x = numbers(shape)
    np.testing.assert_array_equal(transpose_on_gpu(cp.asarray(x)).get(), x.T)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        found = transpose_on_gpu(cp.asarray(x), stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(found.get(), x.T)
