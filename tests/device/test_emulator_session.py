"""`fa_numba.emulate`: one machine, BLAS with one thread, everything as before afterwards."""

import inspect
import subprocess
import sys

import pytest
from threadpoolctl import threadpool_info

import fa_numba
from fa_numba.device.emulator import state
from fa_numba.device.emulator.machine import Machine

pytestmark = pytest.mark.emu


def test_the_signature_is_that_of_the_contract():
    assert str(inspect.signature(fa_numba.emulate)).startswith(
        "(policy: str = 'late/late', schedule: str = 'round_robin', seed: int = 0, "
        "trace: bool | str = False, strict: bool = False)"
    )


def test_the_innermost_machine_is_the_current_one():
    assert state.machine is None
    with fa_numba.emulate() as outer:
        assert isinstance(outer, Machine)
        assert state.machine is outer
        with fa_numba.emulate("early", "time", seed=3, trace=True, strict=True) as inner:
            assert state.machine is inner
            assert (inner.policy["copy"], inner.strict) == ("early", True)
            assert inner.trace is not None
        assert state.machine is outer
    assert state.machine is None


def test_an_error_ends_it():
    with pytest.raises(RuntimeError, match="inside"), fa_numba.emulate():
        raise RuntimeError("inside")
    assert state.machine is None


def test_blas_has_one_thread_inside():
    code = """
import numpy, fa_numba
from threadpoolctl import threadpool_info
count = lambda: [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
before = count()
with fa_numba.emulate():
    print(set(count()) == {1} or not before)
print(count() == before, max(before, default=1))
"""
    environment = {"OPENBLAS_NUM_THREADS": "2", "PATH": ""}
    command = [sys.executable, "-c", code]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = text.stdout.splitlines()
    assert lines[0] == "True"
    assert lines[1].startswith("True")
    assert isinstance(threadpool_info(), list)


def test_wrong_options_are_refused_before_anything_changes():
    with pytest.raises(ValueError, match="policy"), fa_numba.emulate("sometimes"):
        pass
    assert state.machine is None


def test_threadpoolctl_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with (
        pytest.raises(ImportError, match=r"pip install .fa_numba\[emulator\]"),
        fa_numba.emulate(),
    ):
        pass


def test_importing_fa_numba_imports_nothing_heavy():
    code = "import sys, fa_numba; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "fa_numba.device.emulator" in loaded
    assert {"greenlet", "threadpoolctl", "numba", "fa_numba.device.emulator.machine"} & set(
        loaded
    ) == set()
