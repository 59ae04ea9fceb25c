"""Write the .ipynb of every notebook from its .py, which is the text that is reviewed.

``python notebooks/pair.py`` writes them; a test fails if one is out of date. The same .py always
gives the same bytes: no outputs, the same metadata, cell ids by position.
"""

from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).parent
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def sources(folder: Path = FOLDER) -> list[Path]:
    """Return the notebooks' .py files, in the order of the course."""
    return sorted(folder.glob("[0-9][0-9]_*.py"))


def render(source: Path) -> str:
    """Return the text of the .ipynb that belongs to a .py."""
    notebook = jupytext.read(source, fmt="py:percent")
    cells = [
        {
            "cell_type": cell.cell_type,
            "id": f"cell-{number:03d}",
            "metadata": {},
            "source": cell.source,
            **({"execution_count": None, "outputs": []} if cell.cell_type == "code" else {}),
        }
        for number, cell in enumerate(notebook.cells)
    ]
    document = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    canonical = nbformat.from_dict(document)
    nbformat.validate(canonical)
    return nbformat.writes(canonical) + "\n"


def main(folder: Path = FOLDER) -> None:
    """Write every .ipynb of a folder whose text has changed."""
    for source in sources(folder):
        target, text = source.with_suffix(".ipynb"), render(source)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
            print(f"wrote {target.name}")


if __name__ == "__main__":
    main()
