"""The device pages: their tables are whole, and what they say of Numba is what Numba does."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from fa_numba.device import cache, ops
from fa_numba.device.emulator import KINDS
from fa_numba.device.ops.declare import Instruction, instruction

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/device"


@pytest.fixture(scope="module")
def tables():
    path = ROOT / "docs/_ext/device_tables.py"
    spec = importlib.util.spec_from_file_location("device_tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rendered(tables):
    return tables.render_ops()


def cells(rendered, name):
    """The row of an op: summary, PTX, since, section."""
    rows = re.findall(rf"^\| \{{py:func\}}`{name} <.*>` \| (.*) \|$", rendered, re.MULTILINE)
    assert len(rows) == 1, name
    return re.split(r" (?<!\\)\| ", rows[0])


def test_every_op_has_a_row_and_its_documentation(rendered):
    documented = re.findall(r"^\.\. autofunction:: (\w+)$", rendered, re.MULTILINE)
    assert sorted(documented) == sorted(ops.__all__)
    for name in ops.__all__:
        assert all(cells(rendered, name)), name


def test_rows_say_what_the_ops_say(rendered):
    for name in ops.__all__:
        op = getattr(ops, name)
        summary, ptx, since, section = cells(rendered, name)
        assert summary[:12].replace("\\", "") == inspect.getdoc(op)[:12], name
        if isinstance(op, Instruction):
            assert section == op.section
            assert since.startswith("sm_{}{}".format(*op.since))
            for word in re.findall(r"[\w.]+", ptx):
                assert word in op.ptx, name


def test_rows_of_single_ops(rendered):
    assert cells(rendered, "ex2") == [
        "Return 2 to the power of `x`.", "`ex2.approx.ftz.f32 $0, $1;`", "sm_50", "ex2",
    ]  # fmt: skip
    assert cells(rendered, "quad_max")[1] == "made of `shuffle_xor_f32`, `fmax`"
    assert cells(rendered, "pack_bf16")[2] == "sm_80; other code from sm_50"
    assert cells(rendered, "to_bf16")[2] == "sm_80; other code from sm_50"
    assert cells(rendered, "load_shared_f32")[1] == "`ld.shared.b32`"
    assert cells(rendered, "store_global_u16")[1].endswith("st.global.u16`")
    assert cells(rendered, "zeros")[1] == "no instruction"
    assert "lane" in cells(rendered, "gemm_simt")[1]


def test_the_whole_ptx_stands_with_each_op(rendered):
    for name in ops.__all__:
        op = getattr(ops, name)
        if isinstance(op, Instruction):
            text = rendered.split(f".. autofunction:: {name}\n")[1].partition("\n.. auto")[0]
            for ptx in [op.ptx, *op.variants.values()]:
                assert "\n".join(f"       {line}" for line in ptx.splitlines()) in text


def test_an_op_for_new_hardware_only_is_shown_as_such(tables):
    @instruction("new.b32 $0, $1;", "u32(u32)", since=(10, 0), section="new")
    def new(x):
        """Return something new."""

    assert tables._since(new) == "sm_100"
    assert tables._ptx_summary(new) == "`new.b32 $0, $1;`"


def test_markup_of_docstrings_is_escaped(tables):
    assert tables._markdown("a*b |x| ``f(x) | g``  [n]") == r"a\*b \|x\| `f(x) \| g`  \[n\]"


def test_every_kind_of_hazard_has_a_row_and_a_section(tables):
    page = (PAGES / "emulator.md").read_text(encoding="utf-8")
    assert page.count(tables.KINDS_MARKER) == 1
    assert re.findall(r"^\(hazard-([\w-]+)\)=$", page, re.MULTILINE) == list(KINDS)
    linked = re.findall(r"^\| \[`([\w-]+)`\]\(#hazard-\1\) \|", tables.render_kinds(), re.MULTILINE)
    assert linked == list(KINDS)


def test_the_ops_page_has_the_place_for_the_tables(tables):
    assert (PAGES / "ops.md").read_text(encoding="utf-8").count(tables.OPS_MARKER) == 1


def test_every_environment_variable_of_the_cache_is_described():
    page = (PAGES / "compile.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE)
    read = re.findall(r'environ\.get\("(\w+)"\)', inspect.getsource(cache))
    assert sorted(named) == sorted(read)


def arithmetic():
    """(expression, types of a and b, type of the result) of the table of Numba's arithmetic."""
    page = (PAGES / "compile.md").read_text(encoding="utf-8")
    section = page.partition("### Integers are 64 bits wide")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(.*)` \| (\w+) \| (\w*) ?\| (\w+) \|$", section, re.MULTILINE)
    return [(expression, [t for t in (a, b) if t], result) for expression, a, b, result in found]


def test_the_table_of_arithmetic_is_read():
    assert len(arithmetic()) == 19


@pytest.mark.compile
@pytest.mark.parametrize(("expression", "operands", "result"), arithmetic(), ids=str)
def test_numba_computes_as_the_page_says(expression, operands, result):
    from numba.cuda import types
    from numba.cuda.compiler import compile_cuda

    names = ", ".join(["a", "b"][: len(operands)])
    namespace = {}
    exec(f"def f({names}, out):\n    value = {expression}\n    out[0] = value", namespace)
    arguments = (*[getattr(types, t) for t in operands], types.float64[::1])
    compiled = compile_cuda(namespace["f"], types.void, arguments, cc=(8, 0))
    assert str(compiled.type_annotation.typemap["value"]) == result
