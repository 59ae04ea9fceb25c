"""How long a kernel takes to start: the first call of a process, and the host time of the others.

``python -m benchmarks.launch`` prints a table; it needs a GPU and CuPy. Kernel and arguments are
those of ``benchmarks/launch_kernel.py``: 8 arrays of CuPy and 4 numbers.

First call: a new process imports CuPy and makes the arrays; then the clock runs, from the import
of this package to the end of the kernel on the GPU. Without the cache that includes the compiler.

Host time: the median of single launches, on an idle GPU, waiting outside the clock now and then so
that the queue never fills. The peer is `cuda.core.launch` alone, with everything prepared.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, append_rows, environment, format_table

ROOT = Path(__file__).parent.parent
GATES = {"first call, no cache": 4.0, "first call, cached": 0.6, "host time": 15e-6}
VERSIONS = ("cuda-core", "cupy-cuda13x", "cupy-cuda12x", "numba-cuda")

ARRAYS = """
import cupy
inputs = [cupy.ones((64, 1024), cupy.uint32) for _ in range(7)]
out = cupy.zeros(128, cupy.float32)
args = [*inputs, out, 8, 100, 4096, 0.5]
cupy.cuda.Device().synchronize()
"""

FIRST_CALL = (
    ARRAYS
    + """
import sys, time, json
start = time.perf_counter()
from benchmarks.launch_kernel import twelve
from fa_numba.device.launch import launch
imported = time.perf_counter()
launch(twelve, 132, args)
launched = time.perf_counter()
cupy.cuda.Device().synchronize()
end = time.perf_counter()
print(json.dumps({
    "total": end - start,
    "imports": imported - start,
    "launch": launched - imported,
    "numba": "numba" in sys.modules,
}))
"""
)


def first_call(cache_dir: str) -> dict[str, Any]:
    """Run a new process; return its times in seconds and whether it loaded Numba."""
    env = {**os.environ, "FA_NUMBA_CACHE_DIR": cache_dir}
    command = [sys.executable, "-c", FIRST_CALL]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def first_call_rows(repeats: int) -> list[Row]:
    rows = []
    found: dict[str, list[dict[str, Any]]] = {"no cache": [], "cached": []}
    with tempfile.TemporaryDirectory() as folder:
        # One run that counts for nothing brings Python's byte code and the driver's files in.
        first_call(folder)
        for turn in range(repeats):
            found["no cache"].append(first_call(f"{folder}/{turn}"))
            found["cached"].append(first_call(f"{folder}/{turn}"))
    for name, runs in found.items():
        loads_numba = any(run["numba"] for run in runs)
        if name == "cached" and loads_numba:
            raise RuntimeError("Numba was imported although the kernel was in the cache")
        rows.append(_row(f"first call, {name}", "fa_numba", [run["total"] for run in runs]))
        for part in ("imports", "launch"):
            times = [run[part] for run in runs]
            rows.append(_row(f"first call, {name}: {part}", "fa_numba", times))
    return rows


def host_time_rows(repeats: int) -> list[Row]:
    import cupy
    from cuda.core import LEGACY_DEFAULT_STREAM, LaunchConfig
    from cuda.core import launch as core_launch

    from benchmarks.launch_kernel import twelve
    from fa_numba.device import launch as launching

    variables: dict[str, Any] = {}
    exec(ARRAYS, variables)
    args = variables["args"]
    launching.launch(twelve, 1, args)
    (loaded,) = launching._loaded.values()
    config = LaunchConfig(grid=1, block=twelve.block, shmem_size=twelve.smem_bytes)
    ready = loaded.pack(*args)

    contestants: dict[str, Callable[[], None]] = {
        "fa_numba": lambda: launching.launch(twelve, 1, args),
        "cuda.core.launch alone": lambda: core_launch(
            LEGACY_DEFAULT_STREAM, config, loaded.handle, *ready
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            for _ in range(100):
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
            cupy.cuda.Device().synchronize()
    return [_row("host time", name, values) for name, values in times.items()]


def _row(case: str, contestant: str, times: list[float]) -> Row:
    median = statistics.median(times)
    gate = GATES.get(case) if contestant == "fa_numba" else None
    return {
        "case": case,
        "contestant": contestant,
        "median_s": f"{median:.7f}",
        "best_s": f"{min(times):.7f}",
        "gate": "" if gate is None else f"<= {gate}",
        "verdict": "" if gate is None else ("kept" if median <= gate else "missed"),
    }


def gpu_environment() -> Row:
    """Describe the GPU side of the machine."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    row: Row = {
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
    }
    for name in VERSIONS:
        try:
            row[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            row[name] = "none"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--save", action="store_true", help="append to results/launch.csv")
    options = parser.parse_args()

    where = environment() | gpu_environment()
    print(", ".join(f"{name} {value}" for name, value in where.items()), end="\n\n")
    rows = first_call_rows(1 if options.quick else 5)
    rows += host_time_rows(5 if options.quick else 50)
    print(format_table(rows, ("case", "contestant", "median_s", "best_s", "gate", "verdict")))
    if options.save:
        print(f"\nappended to {append_rows('launch', [where | row for row in rows])}")


if __name__ == "__main__":
    main()
