"""The page of injected bugs: what is changed in the row softmax, and how the emulator names it.

The page is written by ``python -m tests.bug_reports`` and checked bug by bug by
`test_bug_reports.py`. Line numbers and addresses of arrays are left out: they change with every
edit, or from run to run.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from tests.mutants.row_softmax_bugs import BUGS, Bug
from tests.mutants.row_softmax_case import changed_run, judge

PAGE = Path(__file__).parents[1] / "docs/device/bugs.md"

INTRODUCTION = """\
# Injected bugs

Does the emulator find what it should? [The row softmax](kernels.md) is broken on purpose, in
{count} ways that one breaks kernels, and each must be found by the report that names it. Below are
the edits and what is said: the hazard at the line that matters (there may be others), the deadlock,
or that only a comparison with the oracle shows it: an error of arithmetic breaks no rule of the
machine. [The emulator](emulator.md#reading-a-report) explains the reports.

The page is written from the list that the tests run (`tests/mutants/row_softmax_bugs.py`), and a
test compares it with what the emulator says today. Line numbers are left out.
"""


def edits_text(bug: Bug) -> str:
    """The changes as lines with - and +, by file."""
    lines = []
    for module in dict.fromkeys(module for module, *_ in bug.edits):
        lines.append(f"{module}.py")
        for edited, old, new in bug.edits:
            if edited == module:
                difference = difflib.ndiff(old.splitlines(), new.splitlines())
                lines += [line.rstrip() for line in difference if line[0] in "-+"]
    return "\n".join(lines)


def report_text(bug: Bug) -> str:
    """What the emulator says, without what changes from run to run."""
    verdict = judge(changed_run(bug.texts()), bug.case)
    named = [h for h in verdict.hazards if h.kind == bug.found and bug.at in h.source]
    if bug.found not in verdict.kinds:
        said = f"not found, but: {verdict}"
    elif bug.found == "wrong numbers":
        said = "no hazard; the numbers are wrong"
    else:
        said = verdict.deadlock if bug.found == "deadlock" else str(named[0])
    said = re.sub(r"\.py:\d+:", ".py:", said)
    return re.sub(r"0x7[0-9a-f]{9,}", "0x7...", said)


def section(bug: Bug) -> str:
    """One section of the page."""
    title = bug.name[0].upper() + bug.name[1:]
    return f"## {title}\n\n```text\n{edits_text(bug)}\n```\n\n```text\n{report_text(bug)}\n```\n"


def main() -> None:
    """Write the page."""
    parts = [INTRODUCTION.format(count=len(BUGS)), *map(section, BUGS)]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
