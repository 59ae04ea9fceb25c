"""Importing fa_numba is quick and light; nothing in the repository points out of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TEXT_SUFFIXES = {
    "",
    ".cff",
    ".css",
    ".ipynb",
    ".json",
    ".md",
    ".py",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}


def run_python(code):
    # Byte code must be cached as it is for a user, whatever the test run was told.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
    ).stdout


def test_import_is_light():
    """The heavy libraries are imported where they are used, never by ``import fa_numba``."""
    code = "import sys, fa_numba; print('\\n'.join(sys.modules))"
    loaded = {name.split(".")[0] for name in run_python(code).split()}
    assert "fa_numba" in loaded
    assert (
        loaded & {"numba", "numba_cuda", "llvmlite", "cupy", "cuda", "matplotlib", "torch"} == set()
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_import_is_quick():
    """Less than 0.3 s for the whole process, best of five.

    Processor time, not the clock: other tests run beside this one, and for a single-threaded import
    the two agree on an idle machine.
    """
    import resource

    def seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_python("import fa_numba")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.3


def tracked_files():
    """Files of the repository: what git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in os.fsdecode(listing.stdout).split("\0") if name]


def test_nothing_points_out_of_the_repository():
    """No path to a folder beside the checkout, none of one machine: a clone must stand alone."""
    outside = re.compile(
        "|".join([r"\.\./" + "shared", "/work" + "/", "/root" + "/", "/home" + "/"])
    )
    found = []
    for path in tracked_files():
        if path.suffix not in TEXT_SUFFIXES or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if outside.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []
