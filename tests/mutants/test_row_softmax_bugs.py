"""Every bug is found, by the report that names it; without a bug nothing is."""

import pytest

from tests.mutants.row_softmax_bugs import BUGS
from tests.mutants.row_softmax_case import changed_run, judge

pytestmark = pytest.mark.emu


def test_the_list_is_long_and_has_every_kind_of_report():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
    assert {bug.found for bug in BUGS} >= {
        "race",
        "divergent-barrier",
        "deadlock",
        "uninitialised",
        "out-of-bounds",
        "misaligned",
        "unwritten",
        "double-write",
        "read-only",
        "wrong numbers",
    }


@pytest.mark.parametrize("schedule", ["round_robin", "random"])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_named(bug, schedule):
    verdict = judge(changed_run(bug.texts()), bug.case, schedule=schedule, seed=1)
    if bug.found in ("deadlock", "wrong numbers"):
        assert bug.found in verdict.kinds, str(verdict)
        return
    named = [h for h in verdict.hazards if h.kind == bug.found and bug.at in h.source]
    assert named, str(verdict)


@pytest.mark.parametrize("schedule", ["round_robin", "random"])
@pytest.mark.parametrize("case", {bug.case: None for bug in BUGS}, ids=str)
def test_a_copy_without_a_bug_is_clean(case, schedule):
    verdict = judge(changed_run({}), case, schedule=schedule, seed=1)
    assert verdict.kinds == set(), str(verdict)
