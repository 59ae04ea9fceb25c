"""The glossary page: docs/glossary.toml as a bilingual table, made anew at every build."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mdit_py_plugins.anchors.index import slugify  # what MyST makes heading anchors with

MARKER = "<!-- the glossary's rows -->"
GLOSSARY = Path(__file__).parents[1] / "glossary.toml"

Term = Mapping[str, Any]


def load_terms(path: Path = GLOSSARY) -> list[Term]:
    """Read the terms in the file's order."""
    with path.open("rb") as file:
        return tomllib.load(file)["term"]


def render(terms: Sequence[Term]) -> str:
    """Render the terms as MyST: an index by headword, then one entry a term with its anchor.

    Parameters
    ----------
    terms
        Rows of the glossary file.

    Returns
    -------
    str
        MyST source without headings above level 2.
    """
    by_id = {term["id"]: term for term in terms}
    ordered = sorted(terms, key=lambda term: term["en"].lower())
    lines = ["| English | 中文 | since | here |", "|---|---|---|---|"]
    lines += [
        f"| [{_text(t['en'])}](#{t['id']}) | {_text(t['zh'])} | {_since(t)} | {t['status']} |"
        for t in ordered
    ]
    for term in ordered:
        lines += ["", *_entry(term, by_id)]
    return "\n".join(lines) + "\n"


def _entry(term: Term, by_id: Mapping[str, Term]) -> list[str]:
    lines = [
        f"({term['id']})=",
        f"## {_text(term['en'])} · {_text(term['zh'])}",
        "",
        _text(term["en_sentence"]),
        "",
        _text(term["zh_sentence"]),
        "",
        f"- since / 始于: {_since(term)}",
    ]
    if term["aliases"]:
        lines.append("- also / 又作: " + ", ".join(_text(alias) for alias in term["aliases"]))
    if term["code"]:
        lines.append("- code / 代码: " + ", ".join(f"`{path}`" for path in term["code"]))
    if term["notebook"]:
        path, _, section = term["notebook"].partition("#")
        target = f"{path}#{slugify(section)}"
        lines.append(f"- notebook / 笔记本: [{Path(path).stem}, “{_text(section)}”]({target})")
    if term["status"] == "planned":
        lines.append(f"- planned / 计划中: {_text(term['planned'])}")
    if term.get("see"):
        links = [f"[{_text(by_id[i]['en'])}](#{i})" for i in term["see"]]
        lines.append("- see / 参见: " + ", ".join(links))
    return lines


def _since(term: Term) -> str:
    return "before FA-1" if term["since"] == "pre" else term["since"]


def _text(text: str) -> str:
    r"""Escape what Markdown would read as markup (`N_k`, `a|b`, `x*y`, `[0, 1)`)."""
    return re.sub(r"([\\`*_|\[\]<>$])", r"\\\1", text)


def _insert_rows(app: Any, docname: str, source: list[str]) -> None:
    if docname == "glossary":
        source[0] = source[0].replace(MARKER, render(load_terms()))
        app.env.note_dependency(str(GLOSSARY))


def setup(app: Any) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _insert_rows)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
