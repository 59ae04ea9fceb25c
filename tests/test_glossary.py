"""docs/glossary.toml: no term missing, nothing told twice, every path leads somewhere."""

import ast
import importlib.util
import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TERMS = tomllib.loads((ROOT / "docs/glossary.toml").read_text(encoding="utf-8"))["term"]
IDS = [term["id"] for term in TERMS]

# The spellings under which readers look the terms up. A term that two lists share stands in both.
KERNEL_TERMS = (
    "Attention Sink",
    "AppendKV",
    "Block Table",
    "Causal Masking",
    "ClusterShape",
    "Consumer (Warp Group)",
    "CpAsync",
    "cu_seqlens",
    "Decode Phase",
    "Descale",
    "E4M3 (FP8)",
    "Epilogue",
    "FastDivmod",
    "Flash Decoding",
    "GMMA",
    "GQA (Grouped-Query Attention)",
    "Head Dimension (headdim)",
    "IntraWGOverlap",
    "KV Cache",
    "LSE (Log-Sum-Exp)",
    "Max_offset",
    "MHA (Multi-Head Attention)",
    "MQA (Multi-Query Attention)",
    "n_block_max / n_block_min",
    "Online Softmax",
    "PackGQA",
    "Paged KV Cache",
    "Pipeline (SMEM Pipeline)",
    "Prefill Phase",
    "Producer (Warp Group)",
    "qhead_per_khead",
    "Rescale O",
    "Softcap",
    "Split-KV",
    "SMEM (Shared Memory)",
    "Tiling",
    "Tile Scheduler",
    "TMA (Tensor Memory Accelerator)",
    "Varlen (Variable Length)",
    "V_colmajor",
    "Warp Specialization",
    "window_size",
)
PAPER_TERMS = (
    "HBM（High Bandwidth Memory）",
    "SRAM / Shared Memory",
    "Tensor Core",
    "Tiling",
    "Online Softmax",
    "Recomputation",
    "IO-aware",
    "Sequence Parallelism",
    "TMA（Tensor Memory Accelerator）",
    "WGMMA",
    "Warp Specialization",
    "TMEM（Tensor Memory）",
    "2-CTA MMA",
    "CuTe-DSL",
    "LPT Scheduling",
    "Block Quantization",
    "非对称缩放（Asymmetric Scaling）",
    "MUFU / 软仿真 exp",
    "条件 rescale（τ）",
    "DSMEM",
    "SPT 调度 / 确定性模式",
)
GENERATIONS = ("FA-1", "FA-2", "FA-3", "FA-4")
WANTED = (*KERNEL_TERMS, *PAPER_TERMS, *GENERATIONS)

FIELDS = {
    "id", "zh", "en", "zh_sentence", "en_sentence",
    "since", "aliases", "code", "notebook", "status",
}  # fmt: skip
OPTIONAL_FIELDS = {"planned", "see"}


def spellings(term):
    """Every spelling under which a term is found: the headwords and the aliases."""
    return {term["en"], term["zh"], *term["aliases"]}


def of_each_term(function):
    return pytest.mark.parametrize("term", TERMS, ids=IDS)(function)


def test_the_lists_are_whole():
    assert (len(KERNEL_TERMS), len(PAPER_TERMS)) == (42, 21)


def test_every_wanted_spelling_is_found():
    found = set().union(*map(spellings, TERMS))
    assert [spelling for spelling in WANTED if spelling not in found] == []


def test_each_part_of_a_shared_entry_is_found_alone():
    found = set().union(*map(spellings, TERMS))
    parts = [part for spelling in WANTED if " / " in spelling for part in spelling.split(" / ")]
    assert len(parts) == 8
    assert [part for part in parts if part not in found] == []


def test_ids_are_unique_slugs():
    assert len(set(IDS)) == len(IDS)
    assert [i for i in IDS if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", i)] == []


def test_no_spelling_leads_to_two_terms():
    counts = Counter(spelling for term in TERMS for spelling in spellings(term))
    assert [spelling for spelling, count in counts.items() if count > 1] == []


@of_each_term
def test_aliases_are_listed_once_and_are_no_headwords(term):
    assert len(set(term["aliases"])) == len(term["aliases"])
    assert not {term["en"], term["zh"]} & set(term["aliases"])


@of_each_term
def test_fields_are_those_of_the_schema(term):
    assert set(term) >= FIELDS
    assert set(term) <= FIELDS | OPTIONAL_FIELDS
    assert re.fullmatch(r"FA-[1-4]|pre|20\d\d", term["since"])
    assert term["status"] in ("done", "planned")
    assert ("planned" in term) == (term["status"] == "planned"), "planned rows say what brings them"


@of_each_term
def test_both_languages_say_one_sentence(term):
    for field in ("zh", "en", "zh_sentence", "en_sentence", *({"planned"} & set(term))):
        assert term[field] == term[field].strip() != ""
    assert re.search(r"[\u4e00-\u9fff]", term["zh_sentence"])
    assert not re.search(r"[\u4e00-\u9fff]", term["en"] + term["en_sentence"])
    assert re.fullmatch(r"[^。]+。", term["zh_sentence"])
    assert re.fullmatch(r"(?:[^.]|\.(?! ))+\.", term["en_sentence"])


@of_each_term
def test_neighbours_exist(term):
    neighbours = term.get("see", [])
    assert [i for i in neighbours if i not in IDS] == []
    assert term["id"] not in neighbours


def module_path(module):
    """File of a module, found without importing it (its dependencies may not be installed)."""
    base = ROOT.joinpath(*module.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def names_bound_in(path):
    """Top-level names of a module: functions, classes, assignments, imports."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def code_exists(reference):
    """Whether "module:symbol", "module" or "a/path" is there."""
    if "/" in reference:
        return (ROOT / reference).exists()
    module, _, symbol = reference.partition(":")
    path = module_path(module)
    return path is not None and (not symbol or symbol in names_bound_in(path))


def sections_of(path):
    """Headings in the Markdown cells of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return {found for text in texts for found in re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)}


@of_each_term
def test_every_path_resolves(term):
    assert [reference for reference in term["code"] if not code_exists(reference)] == []
    if term["status"] == "done":
        assert term["code"], "a finished row says where it runs"
    if term["notebook"]:
        path, _, section = term["notebook"].partition("#")
        assert section, "name the section as file#Section heading"
        assert section in sections_of(ROOT / path)


def test_a_wrong_path_is_seen(tmp_path):
    assert code_exists("fa_numba.indexing.mask:is_allowed")
    assert not code_exists("fa_numba.indexing.mask:no_such_name")
    assert not code_exists("fa_numba.no_such_module")
    assert not code_exists("docs/no_such_page.md")
    cells = [("markdown", "# Top\n\n## Heading\ntext"), ("code", "## a comment")]
    notebook = tmp_path / "a.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": k, "source": [s]} for k, s in cells]}))
    assert sections_of(notebook) == {"Heading", "Top"}


@pytest.fixture(scope="module")
def glossary_page():
    path = ROOT / "docs/_ext/glossary_page.py"
    spec = importlib.util.spec_from_file_location("glossary_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_every_term_in_both_languages(glossary_page):
    page = glossary_page.render(glossary_page.load_terms())
    for term in TERMS:
        entry = page.split(f"\n({term['id']})=\n")[1].split("\n(")[0]
        unescaped = entry.replace("\\", "")
        for text in (term["en_sentence"], term["zh_sentence"], *term["aliases"], *term["code"]):
            assert text.replace("\\", "") in unescaped


def test_the_page_has_the_place_for_the_rows(glossary_page):
    assert (ROOT / "docs/glossary.md").read_text(encoding="utf-8").count(glossary_page.MARKER) == 1


def test_markup_in_a_sentence_is_escaped(glossary_page):
    assert glossary_page._text("a|b *c* d_e [f]") == r"a\|b \*c\* d\_e \[f\]"
