"""The asynchronous copy: right when waited for, found when not, whenever it arrives."""

import asynchronous_copy
import numpy as np
import pytest
from asynchronous_copy import reverse_async, run, without_wait

POLICIES = ["late", "early", "random"]


@pytest.mark.emu
@pytest.mark.parametrize("schedule", ["round_robin", "random", "time"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_right_kernel_is_right_whenever_copies_arrive(policy, schedule):
    out, machine = run(reverse_async, policy=policy, schedule=schedule, seed=5)
    assert machine.hazards == []
    assert out.tolist() == list(range(31, -1, -1))


@pytest.mark.emu
@pytest.mark.parametrize("policy", POLICIES)
def test_the_missing_wait_is_found_whenever_copies_arrive(policy):
    out, machine = run(without_wait, policy=policy)
    found = {(hazard.kind, hazard.op, hazard.count) for hazard in machine.hazards}
    assert found == {("race", "load_shared_f32", 32), ("unwaited", "copy_async", 32)}
    if policy != "random":
        assert np.isnan(out).all() == (policy == "late")


@pytest.mark.emu
def test_the_script_runs_both(capsys):
    asynchronous_copy.main()
    printed = capsys.readouterr().out
    assert printed.count("reverse_async, copies arrive") == 2
    assert printed.count("[unwaited]") == 2


@pytest.mark.compile
def test_it_compiles_where_the_hardware_has_it():
    from fa_numba.device.compile import CompileError, compile_kernel

    ptx = compile_kernel(reverse_async, "sm_80").ptx
    assert "cp.async.ca.shared.global" in ptx
    assert "cp.async.wait_all;" in ptx
    with pytest.raises(CompileError, match=r"copy_async needs compute capability 8\.0"):
        compile_kernel(reverse_async, "sm_75")
