"""Tables of the device pages, made anew at every build from the objects that they describe.

`render_ops` lists every op of `fa_numba.device.ops` by family, with its PTX, the architectures that
have it, its section of the PTX ISA manual and its documentation; `render_kinds` every kind of
hazard that the emulator reports.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fa_numba.device import ops
from fa_numba.device.emulator import KINDS
from fa_numba.device.ops.builder import Composite
from fa_numba.device.ops.declare import Instruction, Op
from fa_numba.device.types import DeviceType, FragmentType

OPS_MARKER = "<!-- the ops -->"
KINDS_MARKER = "<!-- the kinds of hazards -->"

# The order for reading; families that are not named follow.
_ORDER = (
    "index",
    "scalar",
    "tanh",
    "convert",
    "fragment",
    "rows",
    "shuffle",
    "barrier",
    "memory",
    "gemm",
)
# What a factory is called with to show an op that it makes.
_SAMPLES: dict[str, Any] = {"zeros": 4, "full": 4, "gemm_simt": "float32"}
# Registers of a sample fragment whose size is open.
_SAMPLE_SIZE = 8
_OPCODE = re.compile(r"^(?:@!?\w+ )?([a-z]\w*(?:[.:]\w+)+)", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """An op of the package, or a factory with one op that it makes."""

    name: str
    op: Op
    is_factory: bool

    @property
    def documented(self) -> Any:
        """What carries the docstring."""
        return getattr(ops, self.name)

    @property
    def summary(self) -> str:
        """First paragraph of the docstring."""
        return " ".join(inspect.getdoc(self.documented).partition("\n\n")[0].split())


class _Recorder:
    """A builder that notes which ops a body uses; see `fa_numba.device.ops.builder.Builder`."""

    def __init__(self) -> None:
        self.used: dict[str, Op] = {}

    def map(self, op: Op, *operands: Any) -> Any:
        self.used[op.name] = op
        if isinstance(op.result, FragmentType):
            return [None] * op.result.count(_SAMPLE_SIZE)
        sizes = [len(x) for x in operands if isinstance(x, list)]
        return [None] * sizes[0] if sizes else None

    def by_row(self, size: int, first: Any, second: Any) -> Any:
        return [None] * size

    def constants(self, numbers: Any) -> Any:
        return list(numbers)

    def fill(self, size: int, value: Any) -> Any:
        return [value] * size

    def join(self, *parts: Any) -> Any:
        return [x for part in parts for x in (part if isinstance(part, list) else [part])]

    def interleave(self, even: Any, odd: Any) -> Any:
        return [x for pair in zip(even, odd, strict=True) for x in pair]

    def integer(self, symbol: str, x: Any, y: Any) -> Any:
        return None

    def loop(self, count: Any, carried: Any, body: Callable[[Any, Any], Any]) -> Any:
        return body(None, carried)


def parts_of(op: Op) -> dict[str, Op]:
    """Return the instructions that a composite op is made of, by name in the order of first use."""
    if not isinstance(op, Composite):
        return {}
    recorder = _Recorder()
    operands = [
        [None] * t.count(_SAMPLE_SIZE) if isinstance(t, FragmentType) else None
        for t in op.parameters
    ]
    op.body(recorder, *operands)
    return recorder.used


def oldest(op: Op) -> tuple[int, int]:
    """Return the first compute capability on which an op works, by whatever PTX."""
    if isinstance(op, Instruction):
        return min([op.since, *op.variants])
    parts = parts_of(op).values()
    if any(isinstance(part, Instruction) and part.variants for part in parts):
        return max(oldest(part) for part in parts)
    return op.since


def entries() -> list[Entry]:
    """Return all public ops by name."""
    found = []
    for name in ops.__all__:
        public = getattr(ops, name)
        is_factory = not isinstance(public, Op)
        found.append(Entry(name, public(_SAMPLES[name]) if is_factory else public, is_factory))
    return found


def families() -> list[Any]:
    """Return the modules that the public ops come from, in an order for reading."""
    stems = set(re.findall(rf"^from {ops.__name__}\.(\w+) import", inspect.getsource(ops), re.M))
    ordered = [stem for stem in _ORDER if stem in stems] + sorted(stems - set(_ORDER))
    return [importlib.import_module(f"{ops.__name__}.{stem}") for stem in ordered]


def render_ops() -> str:
    """Render a section for each family: what its module says, a table, and each op's docstring."""
    by_name = {entry.name: entry for entry in entries()}
    lines: list[str] = []
    for module in families():
        members = [by_name[name] for name in module.__all__]
        stem = module.__name__.rpartition(".")[2]
        lines += [f"(ops-{stem})=", f"### {stem}", ""]
        lines += ["```{eval-rst}", inspect.getdoc(module), "```", ""]
        lines += ["| op | what it does | PTX | since | section |", "|---|---|---|---|---|"]
        lines += [_row(entry) for entry in members]
        lines += ["", "```{eval-rst}", ".. currentmodule:: fa_numba.device.ops", ""]
        for entry in members:
            lines += _documentation(entry)
        lines += ["```", ""]
    return "\n".join(lines)


def render_kinds() -> str:
    """Render the kinds of hazards and what they say."""
    rows = [f"| [`{kind}`](#hazard-{kind}) | {text} |" for kind, text in KINDS.items()]
    return "\n".join(["| kind | what it says |", "|---|---|", *rows])


def _row(entry: Entry) -> str:
    cells = [
        f"{{py:func}}`{entry.name} <fa_numba.device.ops.{entry.name}>`",
        _markdown(entry.summary),
        _ptx_summary(entry.op),
        _since(entry.op),
        _markdown(entry.op.section),
    ]
    return "| " + " | ".join(cells) + " |"


def _ptx_summary(op: Op) -> str:
    if isinstance(op, Instruction):
        text = op.ptx if "\n" not in op.ptx else " … ".join(_opcodes(op.ptx))
        return f"`{text}`".replace("|", r"\|")
    parts = list(parts_of(op))
    return f"made of {', '.join(f'`{name}`' for name in parts)}" if parts else "no instruction"


def _opcodes(ptx: str) -> list[str]:
    """Return the instructions of a piece of PTX without those that prepare operands."""
    found = [x for x in _OPCODE.findall(ptx) if not x.startswith(("mov.", "setp.ne."))]
    return list(dict.fromkeys(found))


def _since(op: Op) -> str:
    first = oldest(op)
    return _sm(op.since) if first == op.since else f"{_sm(op.since)}; other code from {_sm(first)}"


def _sm(capability: tuple[int, int]) -> str:
    return "sm_{}{}".format(*capability)


def _documentation(entry: Entry) -> list[str]:
    lines = [f".. autofunction:: {entry.name}", ""]
    op = entry.op
    if not entry.is_factory:
        lines += [f"   Types: ``{_signature(op)}``", ""]
    if isinstance(op, Instruction):
        texts = [(op.since, op.ptx), *sorted(op.variants.items(), reverse=True)]
        for since, ptx in texts:
            lines += [f"   PTX from {_sm(since)}::", ""]
            lines += [f"       {line}" for line in ptx.splitlines()]
            lines += [""]
    return lines


def _signature(op: Op) -> str:
    taken = ", ".join(_type(t) for t in op.parameters)
    return f"({taken}) -> {'nothing' if op.result is None else _type(op.result)}"


def _type(t: DeviceType | FragmentType) -> str:
    return f"{t.element.name}[{t.size}]" if isinstance(t, FragmentType) else t.name


def _markdown(text: str) -> str:
    r"""Escape what Markdown would read as markup, but for code in backticks."""
    parts = re.split(r"(`+[^`]*`+)", text)
    return "".join(
        re.sub(r"`+", "`", part).replace("|", r"\|")
        if part.startswith("`")
        else re.sub(r"([\\*_|\[\]<>$])", r"\\\1", part)
        for part in parts
    )


_PAGES = {
    "device/ops": (OPS_MARKER, render_ops),
    "device/emulator": (KINDS_MARKER, render_kinds),
}


def _insert(app: Any, docname: str, source: list[str]) -> None:
    if docname in _PAGES:
        marker, render = _PAGES[docname]
        source[0] = source[0].replace(marker, render())


def _always_outdated(app: Any, env: Any, added: Any, changed: Any, removed: Any) -> list[str]:
    """Read the pages at every build: what they show changes with the code."""
    return [docname for docname in _PAGES if docname in env.found_docs]


def setup(app: Any) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _insert)
    app.connect("env-get-outdated", _always_outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
