"""What all benchmarks share: timing contestants fairly, describing the machine, keeping rows.

A row is one contestant in one case. Rows are appended to a CSV file in ``results/``, never
rewritten: the tables of README and docs are drawn from them, and a number without its machine,
versions and commit is worth nothing.
"""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


def interleave(
    contestants: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
    """Time every contestant `repeats` times after a warm-up, in seconds.

    They take turns, so that whatever else the machine does hits all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if turn > 0:
                times[name].append(time.perf_counter() - start)
    return times


def time_columns(times: Sequence[float], peer_times: Sequence[float]) -> Row:
    """Return median, best and the ratio of the best times to those of a peer of the same run."""
    return {
        "median_s": f"{statistics.median(times):.6f}",
        "best_s": f"{min(times):.6f}",
        "ratio": f"{min(times) / min(peer_times):.3f}",
    }


def environment() -> Row:
    """Describe where and with what a row was measured."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "device": _cpu_name(),
        "cores": os.cpu_count(),
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", os.cpu_count()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "threadpoolctl": _version("threadpoolctl"),
        "blas": f"{blas['name']} {blas['version']}",
    }


def append_rows(name: str, rows: Sequence[Row]) -> Path:
    """Append rows to ``results/<name>.csv``; the columns must be those that are there."""
    path = RESULTS / f"{name}.csv"
    columns = list(rows[0])
    is_new = not path.exists()
    if not is_new:
        with path.open(newline="", encoding="utf-8") as file:
            present = next(csv.reader(file))
        if present != columns:
            raise ValueError(f"{path} has the columns {present}; the rows have {columns}")
    path.parent.mkdir(exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)
    return path


def format_table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Lay some columns of the rows out as text."""
    lines = [list(columns), *([str(row[c]) for c in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = (line.partition(":") for line in info.read_text(encoding="utf-8").splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
        if "model name" in fields:
            family, model = fields.get("cpu family", "?"), fields.get("model", "?")
            return f"{fields['model name']} (family {family}, model {model})"
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Return the short hash of HEAD, with a plus sign if the code differs from it.

    A copy without its repository is told by ``FA_NUMBA_COMMIT`` what it is a copy of.
    """

    def git(*arguments: str) -> str | None:
        command = ["git", *arguments]
        run = subprocess.run(
            command, cwd=RESULTS.parent, capture_output=True, text=True, check=False
        )
        return run.stdout.strip() if run.returncode == 0 else None

    head = git("rev-parse", "--short", "HEAD")
    if head is None:
        return os.environ.get("FA_NUMBA_COMMIT", "none")
    return head + ("+" if git("status", "--porcelain", "--", "../fa_numba") else "")
