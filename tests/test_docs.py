"""The documentation: every snippet runs, every public name is described, the pages build."""

import doctest
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fa_numba

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if not {"_build", "notebooks", "jupyter_execute"} & set(page.relative_to(DOCS).parts)
)
FENCE = re.compile(r"^( *)(```+|:::+)(.*)\n(?s:(.*?))^\1\2 *$", re.MULTILINE)

# A fence holds a tested session, a directive, or text that is no Python.
UNTESTED = {"text", "console", "toml"}


def fences(page):
    """(info string, body, line number) of every fenced block."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield found[3].strip(), found[4], text.count("\n", 0, found.start())


def page_id(page):
    return page.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_python_snippet_is_a_tested_session(page):
    for info, body, line in fences(page):
        known = info == "pycon" or info in UNTESTED or info.startswith("{")
        assert known, f"{page.name}:{line + 1}: a fence of kind {info!r} is not run by any test"
        if info != "pycon":
            assert ">>>" not in body, f"{page.name}:{line + 1}: a session outside a pycon fence"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(info == "pycon" for info, *_ in fences(page))],
    ids=page_id,
)
def test_the_sessions_of_a_page_print_what_they_say(page):
    """One namespace a page, in order; a failure shows the page's own line numbers."""
    parser = doctest.DocTestParser()
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False
    )
    report = []
    namespace = {}
    for info, body, line in fences(page):
        if info == "pycon":
            session = parser.get_doctest(body, namespace, page.name, str(page), line + 1)
            assert session.examples, f"{page.name}:{line + 1}: a session without a prompt"
            runner.run(session, out=report.append, clear_globs=False)
            namespace = session.globs
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_the_api_page_describes_every_public_name():
    described = re.findall(
        r"^\.\. auto(?:function|class):: (\w+)$", (DOCS / "api.md").read_text(), re.M
    )
    assert sorted(described) == sorted(fa_numba.__all__)


def contract_signatures():
    """(name, arguments, is whole) of each signature that the contract writes out."""
    text = (DOCS / "contract.md").read_text(encoding="utf-8")
    functions = text.partition("## Public functions")[2].partition("\n## ")[0]
    for term in re.findall(r"^`.*`$", functions, re.MULTILINE):
        for name, arguments in re.findall(r"`(\w+)\((.*?)\)(?: -> [^`]*)?`", term):
            written = [part for part in re.split(r", (?![^()]*\))", arguments) if part]
            kept = [part for part in written if "…" not in part]
            if kept and kept[-1] == "*":
                kept.pop()
            yield name, ", ".join(kept), written == kept


def parameters(function):
    """{name: (keyword only, default or None)} with defaults as source text."""
    return {
        p.name: (p.kind is p.KEYWORD_ONLY, None if p.default is p.empty else repr(p.default))
        for p in inspect.signature(function).parameters.values()
    }


def test_the_contract_writes_out_every_public_name():
    written = {name for name, *_ in contract_signatures()}
    assert set(fa_numba.__all__) <= written
    assert "flash_attn_func" in {name for name, _, is_whole in contract_signatures() if is_whole}


@pytest.mark.parametrize(
    ("name", "arguments", "is_whole"),
    [signature for signature in contract_signatures() if hasattr(fa_numba, signature[0])],
    ids=lambda value: value if str(value).isidentifier() else "",
)
def test_the_signatures_are_those_of_the_contract(name, arguments, is_whole):
    namespace = {}
    exec(f"def told({arguments}): ...", namespace)
    told, real = parameters(namespace["told"]), parameters(getattr(fa_numba, name))
    assert told == {parameter: real.get(parameter) for parameter in told}
    assert not is_whole or told == real


def test_the_installation_page_names_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "guide/installation.md").read_text(), re.M)
    named = {extra for row in rows for extra in re.findall(r"`([\w-]+)`", row)}
    assert named == set(project["optional-dependencies"])


needs_sphinx = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None
        for name in ("sphinx", "myst_nb", "sphinx_copybutton")
    ),
    reason="needs the docs extra",
)


@needs_sphinx
def test_the_documentation_builds_without_a_warning(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html",
         "-d", tmp_path / "doctrees", DOCS, tmp_path / "html"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-6000:]
    glossary = (tmp_path / "html/glossary.html").read_text(encoding="utf-8")
    assert 'id="online-softmax"' in glossary
    assert "在线 softmax" in glossary
    api = (tmp_path / "html/api.html").read_text(encoding="utf-8")
    assert [name for name in fa_numba.__all__ if f'id="fa_numba.{name}"' not in api] == []
