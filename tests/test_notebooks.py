"""Notebooks: each .ipynb is what its .py says, holds no outputs, and runs in a fresh kernel."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from notebooks.pair import METADATA, main, render, sources

ROOT = Path(__file__).parents[1]
SOURCES = sources()
IPYNB = [source.with_suffix(".ipynb") for source in SOURCES]
BUDGET_SECONDS = 40  # of processor time, which a busy machine does not stretch


def read(path):
    return nbformat.read(path, as_version=4)


def markdown(path):
    return "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def test_every_notebook_has_its_py_and_the_other_way_round():
    assert len(SOURCES) >= 2
    assert sorted(ROOT.glob("notebooks/*.ipynb")) == IPYNB


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_ipynb_is_what_its_py_gives(source):
    """Outputs, odd metadata or fresh cell ids make another text, as does an edit of one half."""
    text = source.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert text == render(source), "run: python notebooks/pair.py"


@pytest.mark.parametrize("path", IPYNB, ids=lambda path: path.stem)
def test_ipynb_is_canonical(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["metadata"] == METADATA
    cells = notebook["cells"]
    assert [cell["id"] for cell in cells] == [f"cell-{i:03d}" for i in range(len(cells))]
    for cell in cells:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    nbformat.validate(nbformat.from_dict(notebook))


def test_pairing_writes_what_is_missing_or_stale_and_nothing_else(tmp_path, capsys):
    source = tmp_path / "01_small.py"
    source.write_text("# %% [markdown]\n# # Title\n\n# %%\n# %matplotlib inline\n1 + 1\n")
    main(tmp_path)
    target = tmp_path / "01_small.ipynb"
    first = target.read_text()
    cells = json.loads(first)["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code"]
    assert "".join(cells[1]["source"]) == "%matplotlib inline\n1 + 1"
    target.write_text(first.replace("1 + 1", "1 + 2"))
    main(tmp_path)
    assert target.read_text() == first
    main(tmp_path)
    assert capsys.readouterr().out == "wrote 01_small.ipynb\n" * 2


@pytest.mark.parametrize("path", IPYNB, ids=lambda path: path.stem)
def test_a_notebook_follows_the_pattern_of_the_course(path):
    text = markdown(path)
    assert re.match(rf"# {path.stem[:2]} · ", text)
    for heading in ("Goal.", "Prerequisites.", "Time."):
        assert f"**{heading}**" in text
    for heading in ("## Where to find it in the code", "## Summary", "## What next"):
        assert heading in text
    headings = re.findall(r"^#+ .+$", text, re.MULTILINE)
    assert len(headings) == len(set(headings)), "sections are linked by their names"


@pytest.mark.parametrize("path", IPYNB, ids=lambda path: path.stem)
def test_every_exercise_of_the_chapter_is_set_and_no_other(path):
    from fa_numba.exercises import exercises

    code = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")
    set_here = re.findall(r'^check\("([^"]+)", \w+\)$', code, re.MULTILINE)
    assert sorted(set_here) == sorted(n for n in exercises() if n.startswith(path.stem[:2]))
    assert code.count("raise NotImplementedError") == len(set_here)


@pytest.mark.parametrize("path", IPYNB, ids=lambda path: path.stem)
def test_files_and_names_that_a_notebook_points_at_exist(path):
    text = markdown(path)
    for name in re.findall(r"`(fa_numba/[\w/.]+)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / "notebooks" / name).exists(), name


def test_the_syllabus_names_every_notebook():
    syllabus = (ROOT / "notebooks/README.md").read_text(encoding="utf-8")
    for path in IPYNB:
        assert f"[{path.stem}]({path.name})" in syllabus
    for name in re.findall(r"\]\((\d\d_\w+\.ipynb)\)", syllabus):
        assert (ROOT / "notebooks" / name).exists(), name


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The kernel "python3", which is this interpreter, from a folder of our own."""
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return "python3"


def execute(notebook, kernel):
    client = nbclient.NotebookClient(
        notebook, kernel_name=kernel, timeout=120, resources={"metadata": {"path": str(ROOT)}}
    )
    asyncio.run(client.async_execute())
    return notebook


@pytest.mark.notebook
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", IPYNB, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_fresh_kernel(path, kernel):
    """No error, no warning, one picture a figure, and a gentle word for each open exercise."""
    before = os.times()
    notebook = execute(read(path), kernel)
    after = os.times()
    busy = after.children_user + after.children_system
    busy -= before.children_user + before.children_system
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    streams = [output for output in outputs if output.output_type == "stream"]
    assert [s.text for s in streams if s.name == "stderr"] == []
    figures = sum(cell.source.count("viz.") > cell.source.count("import viz") for cell in code)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == figures > 0
    said = "\n".join(s.text for s in streams)
    assert said.count(": not yet.") == sum(cell.source.count('check("') for cell in code)
    assert 0 < busy < BUDGET_SECONDS


@pytest.mark.notebook
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", IPYNB, ids=lambda path: path.stem)
def test_solutions_pasted_into_the_skeletons_pass(path, kernel):
    """What a learner does: the body of a skeleton is replaced, and the cell says it is right."""
    from fa_numba.exercises import exercises, solution

    cells = []
    for cell in read(path).cells:
        name = re.search(r'^check\("([^"]+)", (\w+)\)$', cell.source, re.MULTILINE)
        if name:
            answer = exercises()[name[1]].solution.__name__
            imports = "import numpy as np\nfrom fa_numba.exercises import check\n"
            pasted = f'{imports}{solution(name[1])}\ncheck("{name[1]}", {answer})'
            cells.append(nbformat.v4.new_code_cell(pasted.replace(": Chip", "")))
    notebook = execute(nbformat.v4.new_notebook(cells=cells), kernel)
    verdicts = [cell.outputs[0].text for cell in notebook.cells]
    assert len(verdicts) >= 4
    assert all(verdict.startswith("✓") for verdict in verdicts), verdicts
