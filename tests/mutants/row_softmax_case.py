"""Changed copies of the row softmax, and what the emulator and the oracle say about one.

The kernel and its stages are three modules. A copy is made from their source text, changed, so that
a report names the line that was changed or the one that suffers.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fa_numba.device.emulator import Deadlock, EmulationError, Hazard, emulate
from fa_numba.fast import row_softmax, softmax, tile_io
from tests.row_softmax import assert_row_softmax, layout, make_scores, place

# Those that others import come first.
MODULES = {"tile_io": tile_io, "softmax": softmax, "row_softmax": row_softmax}

_numbers = itertools.count()


def source(module: str) -> str:
    """Return the text of one of `MODULES`."""
    return Path(MODULES[module].__file__).read_text(encoding="utf-8")


def changed_run(texts: Mapping[str, str]) -> Callable[..., None]:
    """Return `run_row_softmax` of a copy of the modules, some of them with another text."""
    namespaces: dict[str, dict[str, Any]] = {}
    number = next(_numbers)
    for name, module in MODULES.items():
        text = texts.get(name, source(name))
        file = f"<copy {number}>/{name}.py"
        # Reports show source lines, and find them here.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace = namespaces[name] = {"__name__": module.__name__}
        exec(compile(text, file, "exec", dont_inherit=True), namespace)
        for other, copied in namespaces.items():
            for symbol in MODULES[other].__all__:
                if namespace.get(symbol) is getattr(MODULES[other], symbol):
                    namespace[symbol] = copied[symbol]
    return namespaces["row_softmax"]["run_row_softmax"]


@dataclass(frozen=True)
class Case:
    """A matrix, and how it is run; see `tests.row_softmax.layout` for the kinds."""

    dtype: str
    rows: int
    cols: int
    kind: str = "contiguous"
    tile_m: int = 16
    tile_n: int = 64
    # Whether shared memory must be used without bank conflicts.
    banks: bool = False


@dataclass
class Verdict:
    """What was found: hazards, a deadlock, an exception, wrong numbers."""

    hazards: list[Hazard]
    deadlock: str = ""
    error: str = ""
    wrong: str = ""

    @property
    def kinds(self) -> set[str]:
        """Names of all that was found."""
        found = {hazard.kind for hazard in self.hazards}
        others = {"deadlock": self.deadlock, "error": self.error, "wrong numbers": self.wrong}
        return found | {name for name, text in others.items() if text}

    def __str__(self) -> str:
        """Return all reports."""
        texts = [*map(str, self.hazards), self.deadlock, self.error, self.wrong]
        return "\n".join(text for text in texts if text) or "nothing was found"


def judge(run: Callable[..., None], case: Case, **options: Any) -> Verdict:
    """Run a row softmax in the emulator and say all that is wrong with it."""
    x = make_scores(case.rows, case.cols, case.dtype)
    out = layout(case.rows, case.cols, case.dtype, case.kind)
    lse = np.full(case.rows, np.nan, np.float32)
    verdict = Verdict([])
    with emulate(**options) as machine:
        try:
            run(
                place(x, case.dtype, case.kind),
                out,
                lse,
                tile_m=case.tile_m,
                tile_n=case.tile_n,
                target="emulator",
            )
        except Deadlock as error:
            verdict.deadlock = str(error)
        except EmulationError:
            pass  # its hazard is listed
        except Exception as error:  # what a mutant does to Python itself
            verdict.error = repr(error)
    verdict.hazards = machine.hazards
    if not verdict.kinds:
        try:
            assert_row_softmax(out, lse, x, case.dtype)
        except AssertionError as error:
            verdict.wrong = str(error).strip()
    if case.banks:
        lost = [c for c in machine.bank_conflicts if c.wavefronts > c.ideal]
        verdict.error = verdict.error or "\n".join(map(str, lost))
    return verdict
