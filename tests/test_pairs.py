"""Every stem has its row in pairs.toml, and two tellings of one thing take and compute the same.

The tests beside each stem say what it does. These say that the tellings belong together: they exist
where the row says, their parameters have the same names in the same order, and the comparison that
the row names was really run and passed.
"""

import importlib
import inspect
import operator
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fa_numba"
FOLDERS = ("indexing", "reference", "fast")

TABLE = tomllib.loads((ROOT / "tests" / "pairs.toml").read_text(encoding="utf-8"))
REASONS = TABLE["reasons"]
STEMS = {row["name"]: row for row in TABLE["stem"]}
PAIRS = TABLE["pair"]


def modules(folder):
    """Stems of the modules of a folder; empty where the folder is not there yet."""
    return {path.stem for path in (PACKAGE / folder).glob("[!_]*.py")}


def function(place):
    """The function that ``module:name`` or ``module:Class.method`` names."""
    module, _, name = place.partition(":")
    return operator.attrgetter(name)(importlib.import_module(f"fa_numba.{module}"))


def parameters(place, leaving_out=()):
    names = list(inspect.signature(function(place)).parameters)
    unknown = set(leaving_out) - set(names)
    assert not unknown, f"{place} has no parameter {', '.join(sorted(unknown))}"
    return [name for name in names if name not in leaving_out]


def test_every_module_has_a_row_and_every_row_a_module():
    found = set().union(*(modules(folder) for folder in FOLDERS))
    assert found == set(STEMS)
    assert len(STEMS) == len(TABLE["stem"]), "a stem has two rows"


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_telling_is_there_or_its_absence_has_a_reason(stem, folder):
    telling = STEMS[stem][folder]
    if telling is True:
        importlib.import_module(f"fa_numba.{folder}.{stem}")
        test = ROOT / "tests" / folder / f"test_{stem}.py"
        assert test.is_file(), f"{folder}/{stem}.py has no {test.relative_to(ROOT)}"
    else:
        assert telling in REASONS
        assert stem not in modules(folder), f"there is a telling now: '{telling}' is no reason"


@pytest.mark.parametrize("stem", STEMS)
def test_the_notebook_section_is_there_or_its_absence_has_a_reason(stem):
    notebook = STEMS[stem]["notebook"]
    if "#" not in notebook:
        assert notebook in REASONS
        return
    file, section = notebook.split("#")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^# #+ {re.escape(section)}$", text, re.MULTILINE), f"no section {section!r}"


def test_every_reason_is_used():
    used = {row[key] for row in STEMS.values() for key in (*FOLDERS, "notebook")}
    assert set(REASONS) <= used


def test_stems_told_twice_are_compared():
    """A pair for each two tellings of a stem, whatever the folders."""
    compared = {frozenset(p[side].split(":")[0] for side in ("left", "right")) for p in PAIRS}
    for stem, row in STEMS.items():
        folders = [folder for folder in FOLDERS if row[folder] is True]
        for i, first in enumerate(folders):
            for second in folders[i + 1 :]:
                assert {f"{first}.{stem}", f"{second}.{stem}"} in compared, stem


@pytest.mark.parametrize("stem", STEMS)
def test_functions_of_one_name_have_the_same_parameters(stem):
    """What two folders define under one name is one stage, told twice."""
    told = {}
    for folder in FOLDERS:
        if STEMS[stem][folder] is True:
            module = importlib.import_module(f"fa_numba.{folder}.{stem}")
            for name, value in vars(module).items():
                if inspect.isfunction(value) and value.__module__ == module.__name__:
                    told.setdefault(name, set()).add(tuple(inspect.signature(value).parameters))
    assert {name: lists for name, lists in told.items() if len(lists) > 1} == {}


def pair_id(pair):
    return f"{pair['left']}={pair['right']}"


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_a_pair_has_the_same_parameters(pair):
    """In the same order, but for those that the row says only one of the two has."""
    left = parameters(pair["left"], pair.get("left_only", ()))
    right = parameters(pair["right"], pair.get("right_only", ()))
    assert left == right


def run_nodes(nodes, folder, report):
    """Run these tests in a pytest of their own; (tests passed, tests) of each node.

    A run of its own, so that selecting tests, or an error while collecting them, cannot leave a
    comparison out unseen.
    """
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-cov", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *nodes]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # 0: all passed, 1: some failed; else a node does not exist or cannot be collected
    assert run.returncode in (0, 1), run.stdout + run.stderr
    outcomes = dict.fromkeys(nodes, (0, 0))
    for case in ET.parse(report).iter("testcase"):
        path = case.get("classname").replace(".", "/") + ".py"
        node = f"{path}::{case.get('name').split('[')[0]}"
        passed, total = outcomes[node]
        outcomes[node] = (passed + (case.find("*[@message]") is None), total + 1)
    return outcomes


def test_pairs_compute_the_same(tmp_path):
    assert all(pair["compare"] for pair in PAIRS), "a pair names at least one comparison"
    nodes = sorted({node for pair in PAIRS for node in pair["compare"]})
    outcomes = run_nodes(nodes, ROOT, tmp_path / "report.xml")
    assert {node: o for node, o in outcomes.items() if o[0] != o[1] or o[1] == 0} == {}


def test_a_failed_or_skipped_comparison_does_not_count_as_passed(tmp_path):
    (tmp_path / "test_made_up.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('x', [1, 2])\n"
        "def test_fails_once(x): assert x == 1\n"
        "def test_skips(): pytest.skip('no reason')\n"
        "def test_passes(): pass\n"
    )
    nodes = [f"test_made_up.py::test_{name}" for name in ("fails_once", "skips", "passes")]
    outcomes = run_nodes(nodes, tmp_path, tmp_path / "report.xml")
    assert list(outcomes.values()) == [(1, 2), (0, 1), (1, 1)]
