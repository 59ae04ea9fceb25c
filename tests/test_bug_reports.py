"""The page of injected bugs shows what the emulator says today."""

import pytest

from tests.bug_reports import INTRODUCTION, PAGE, section
from tests.mutants.row_softmax_bugs import BUGS

HOW = "write the page anew: python -m tests.bug_reports"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_bug_and_no_other(page):
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert [title.lower() for title in titles] == [bug.name.lower() for bug in BUGS], HOW
    assert page.startswith(INTRODUCTION.format(count=len(BUGS))), HOW


@pytest.mark.emu
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_report_is_that_of_today(page, bug):
    assert section(bug) in page, HOW
