"""Mutation testing of `fa_numba.indexing`: does a test notice if the code is broken?

``python tests/mutants/run.py`` lets mutmut make a copy of the package and change it in one place
after another (``<`` to ``<=``, ``+`` to ``-``, 0 to 1, an argument to None, …). For each of these
mutants the tests that reach the place run once; a mutant that no test notices has *survived*. Some
survivors are no bugs at all, since they compute the same: these are listed, with the reason, in
``survivors.toml``. The command fails if the score is below 90 % or a survivor is not listed there;
``--write`` puts the result into ``indexing.md``.

The tests that compile the functions are left out: they would take seconds for each mutant and can
only repeat what the others say. Hypothesis draws few examples, so the score is a lower bound.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MINIMUM_SCORE = 0.90
EXAMPLES = "25"

# mutmut runs the tests inside its mutated copy, so pytest's settings must travel there too.
SETUP_CFG = """
[mutmut]
source_paths = fa_numba
pytest_add_cli_args_test_selection = tests/indexing
also_copy = pytest.ini
"""
PYTEST_INI = """
[pytest]
pythonpath = .
addopts = --import-mode=importlib -x -q -p no:cacheprovider
"""


def make_workspace(folder):
    """Copy what mutmut needs: the package, its tests, and no other code that could import it."""
    package = folder / "fa_numba"
    shutil.copytree(ROOT / "fa_numba" / "indexing", package / "indexing")
    (package / "__init__.py").write_text("", encoding="utf-8")
    tests = folder / "tests" / "indexing"
    shutil.copytree(ROOT / "tests" / "indexing", tests)
    (tests / "test_compiled.py").unlink()
    (folder / "setup.cfg").write_text(SETUP_CFG, encoding="utf-8")
    (folder / "pytest.ini").write_text(PYTEST_INI, encoding="utf-8")


def mutmut(folder, *arguments, show=False):
    """Run one mutmut command in the workspace and return what it printed."""
    environment = os.environ | {"FA_NUMBA_EXAMPLES": EXAMPLES, "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=folder,
        env=environment,
        stdout=None if show else subprocess.PIPE,
        text=True,
        check=True,
    )
    return result.stdout


def read_mutants(folder, *wanted):
    """Return (function, removed line, added line) of each mutant with one of these statuses."""
    mutants = []
    for line in mutmut(folder, "results").splitlines():
        name, _, status = line.strip().rpartition(": ")
        if status not in wanted:
            continue
        diff = mutmut(folder, "show", name).splitlines()
        removed = [d[1:].strip() for d in diff if d.startswith("-") and not d.startswith("---")]
        added = [d[1:].strip() for d in diff if d.startswith("+") and not d.startswith("+++")]
        module, _, mutant = name.rpartition(".")
        function = module.rpartition(".")[2] + "." + mutant.removeprefix("x_").partition("__mut")[0]
        mutants.append((function, " ".join(removed), " ".join(added)))
    return sorted(mutants)


def load_reasons():
    """Return the reasons of `survivors.toml` by the same triple."""
    table = tomllib.loads((HERE / "survivors.toml").read_text(encoding="utf-8"))
    return {(row["function"], row["code"], row["mutant"]): row["why"] for row in table["survivor"]}


def report(stats, survivors, endless, reasons):
    """Return the text of `indexing.md`."""
    caught = stats["killed"] + stats["timeout"]
    lines = [
        "# Mutants of `fa_numba.indexing`",
        "",
        "Written by `python tests/mutants/run.py --write`; see there for what this is.",
        "",
        f"- mutants: {stats['total']}",
        f"- caught: {caught} (of these, {len(endless)} by the time limit)",
        f"- survived: {len(survivors)}",
        f"- score: {100 * caught / stats['total']:.1f} % (at least {100 * MINIMUM_SCORE:.0f} %)",
        "",
        "## Survivors",
        "",
    ]
    for survivor in survivors:
        function, code, mutant = survivor
        why = reasons.get(survivor, "NOT EXPLAINED")
        lines += [f"- `{function}`: `{code}` → `{mutant}`.", f"  {why}"]
    lines += ["", "## Caught by the time limit", ""]
    lines += [f"- `{function}`: `{code}` → `{mutant}`" for function, code, mutant in endless]
    return "\n".join(lines) + "\n"


def run(children, write):
    """Run all mutants; return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_workspace(folder)
        mutmut(folder, "run", "--max-children", str(children), show=True)
        mutmut(folder, "export-cicd-stats")
        stats = json.loads((folder / "mutants" / "mutmut-cicd-stats.json").read_text())
        survivors = read_mutants(folder, "survived", "no tests", "suspicious")
        endless = read_mutants(folder, "timeout")
    reasons = load_reasons()
    text = report(stats, survivors, endless, reasons)
    print(text)
    if write:
        (HERE / "indexing.md").write_text(text, encoding="utf-8")
    score = (stats["killed"] + stats["timeout"]) / stats["total"]
    unexplained = [survivor for survivor in survivors if survivor not in reasons]
    return 0 if score >= MINIMUM_SCORE and not unexplained else 1


def main():
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max-children", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--write", action="store_true", help="write the result to indexing.md")
    arguments = parser.parse_args()
    return run(arguments.max_children, arguments.write)


if __name__ == "__main__":
    sys.exit(main())
