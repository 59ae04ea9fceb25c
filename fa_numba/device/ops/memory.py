"""Loads and stores.

An address in shared memory is 32 bits and counts from the start of the shared window: begin with
`shared_base`. An address in global memory is 64 bits. An access must be aligned to its size, at
most 16 bytes; anything else is an error on the GPU and in the emulator.

Global accesses take a predicate. Where it is false, a load gives zeros and nothing is touched, so
that the address may be invalid: this is how the tail of a row is read.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fa_numba.device.emulator import state
from fa_numba.device.ops.declare import Instruction, Op, instruction

__all__ = [
    "load_global_f32",
    "load_global_u16",
    "load_global_u32",
    "load_global_u32x2",
    "load_global_u32x4",
    "load_shared_f32",
    "load_shared_f32x2",
    "load_shared_f32x4",
    "load_shared_u16",
    "load_shared_u32",
    "load_shared_u32x2",
    "load_shared_u32x4",
    "shared_base",
    "store_global_f32",
    "store_global_u16",
    "store_global_u32",
    "store_global_u32x2",
    "store_global_u32x4",
    "store_shared_f32",
    "store_shared_f32x2",
    "store_shared_f32x4",
    "store_shared_u16",
    "store_shared_u32",
    "store_shared_u32x2",
    "store_shared_u32x4",
]


class SharedBase(Op):
    """The op that returns where the block's dynamic shared memory begins."""


def _shared_base() -> int:
    """Return the address at which the block's dynamic shared memory begins.

    Since sm_20. It is a multiple of 16, and need not be one of anything more: round up by hand, and
    ask for as many bytes more.

    Returns
    -------
    uint32
    """
    thread = state.current
    assert thread is not None
    return thread.block.shared.base


_shared_base.__name__ = "shared_base"
shared_base = SharedBase(
    _shared_base, "u32()", since=(5, 0), section="Shared state space", needs_thread=True
)


class _Access:
    """How one access looks: registers, bytes, and their text in PTX."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        element, _, count = tag.partition("x")
        self.half = element == "u16"
        self.count = int(count or 1)
        self.dtype = np.dtype({"f32": np.float32, "u32": np.uint32, "u16": np.uint16}[element])
        self.nbytes = self.dtype.itemsize * self.count
        register = "u32" if self.half else element
        self.type = f"{register}[{count}]" if count else register
        self.opcode = (f".v{count}" if count else "") + (".u16" if self.half else ".b32")

    def names(self, pattern: str, first: int = 0) -> list[str]:
        return [pattern.format(i) for i in range(first, first + self.count)]

    def operand(self, names: list[str]) -> str:
        return "{" + ", ".join(names) + "}" if self.count > 1 else names[0]

    def to_registers(self, data: Any) -> Any:
        """Turn the bytes read into the value of the op."""
        values = data.view(self.dtype)
        if self.count > 1:
            values.flags.writeable = False
            return values
        return values[0] if self.dtype.kind == "f" else int(values[0])

    def to_bytes(self, value: Any) -> Any:
        """Turn the op's value into the bytes to write."""
        if self.half:
            value &= 0xFFFF
        return np.atleast_1d(np.asarray(value, self.dtype)).view(np.uint8)

    def load_text(self, space: str, *, predicated: bool) -> str:
        results, address = self.names("${}"), f"${self.count}"
        kind = ".b16" if self.half else ".b32"
        temporaries = self.names("t{}")
        lines = [f".reg {kind} {', '.join(temporaries)};"]
        guard = ""
        if predicated:
            lines += [".reg .pred p;", f"setp.ne.b32 p, ${self.count + 1}, 0;"]
            lines += [f"mov{kind} {t}, 0;" for t in temporaries]
            guard = "@p "
        lines.append(f"{guard}ld.{space}{self.opcode} {self.operand(temporaries)}, [{address}];")
        move = "cvt.u32.u16" if self.half else "mov.b32"
        lines += [f"{move} {r}, {t};" for r, t in zip(results, temporaries, strict=True)]
        return "{\n" + "\n".join(lines) + "\n}"

    def store_text(self, space: str, *, predicated: bool) -> str:
        values = self.names("${}", 1)
        lines, guard = [], ""
        if self.half:
            lines += [".reg .b16 h;", "cvt.u16.u32 h, $1;"]
            values = ["h"]
        if predicated:
            lines += [".reg .pred p;", f"setp.ne.b32 p, ${self.count + 1}, 0;"]
            guard = "@p "
        lines.append(f"{guard}st.{space}{self.opcode} [$0], {self.operand(values)};")
        return "{\n" + "\n".join(lines) + "\n}"

    def phrase(self) -> str:
        """Describe the access for a docstring."""
        if self.half:
            return "16 bits"
        kind = "float32" if self.dtype.kind == "f" else "uint32"
        return f"a {kind}" if self.count == 1 else f"{self.count} {kind} ({self.nbytes} bytes)"


_RESULT_NOTE = {
    True: "\n        The upper 16 bits are 0.",
    False: "",
}


def _declare(
    emulation: Callable[..., Any], access: _Access, doc: str, name: str, ptx: str, signature: str
) -> Instruction:
    emulation.__doc__ = doc
    return instruction(
        ptx,
        signature,
        since=(5, 0),
        section=name.partition("_")[0].replace("load", "ld").replace("store", "st"),
        side_effect=True,
        cycles=max(2, access.nbytes // 4),
        name=name,
    )(emulation)


def _load_shared(tag: str) -> Instruction:
    access = _Access(tag)

    def emulate(thread: Any, address: int) -> Any:
        return access.to_registers(thread.shared_read(address, access.nbytes, access.nbytes))

    doc = f"""Load {access.phrase()} from shared memory.

    Since sm_20.

    Parameters
    ----------
    address : uint32
        A multiple of {access.nbytes}.

    Returns
    -------
    {access.type}{_RESULT_NOTE[access.half]}
    """
    text = access.load_text("shared", predicated=False)
    return _declare(emulate, access, doc, f"load_shared_{tag}", text, f"{access.type}(u32)")


def _store_shared(tag: str) -> Instruction:
    access = _Access(tag)

    def emulate(thread: Any, address: int, value: Any) -> None:
        thread.shared_write(address, access.to_bytes(value), access.nbytes)

    doc = f"""Store {access.phrase()} to shared memory.

    Since sm_20. Other threads may read it after a barrier.

    Parameters
    ----------
    address : uint32
        A multiple of {access.nbytes}.
    value : {access.type}
    """
    text = access.store_text("shared", predicated=False)
    return _declare(emulate, access, doc, f"store_shared_{tag}", text, f"void(u32, {access.type})")


def _load_global(tag: str) -> Instruction:
    access = _Access(tag)

    def emulate(thread: Any, pointer: int, predicate: bool) -> Any:
        if not predicate:
            return access.to_registers(np.zeros(access.nbytes, np.uint8))
        return access.to_registers(thread.global_read(pointer, access.nbytes, access.nbytes))

    doc = f"""Load {access.phrase()} from global memory, or zeros.

    Since sm_20.

    Parameters
    ----------
    pointer : uint64
        A multiple of {access.nbytes}.
    predicate : bool
        Where false, nothing is read and the result is 0.

    Returns
    -------
    {access.type}{_RESULT_NOTE[access.half]}
    """
    text = access.load_text("global", predicated=True)
    return _declare(emulate, access, doc, f"load_global_{tag}", text, f"{access.type}(u64, pred)")


def _store_global(tag: str) -> Instruction:
    access = _Access(tag)

    def emulate(thread: Any, pointer: int, value: Any, predicate: bool) -> None:
        if predicate:
            thread.global_write(pointer, access.to_bytes(value), access.nbytes)

    doc = f"""Store {access.phrase()} to global memory.

    Since sm_20.

    Parameters
    ----------
    pointer : uint64
        A multiple of {access.nbytes}.
    value : {access.type}
    predicate : bool
        Where false, nothing is written.
    """
    text = access.store_text("global", predicated=True)
    signature = f"void(u64, {access.type}, pred)"
    return _declare(emulate, access, doc, f"store_global_{tag}", text, signature)


load_shared_u16 = _load_shared("u16")
load_shared_u32 = _load_shared("u32")
load_shared_u32x2 = _load_shared("u32x2")
load_shared_u32x4 = _load_shared("u32x4")
load_shared_f32 = _load_shared("f32")
load_shared_f32x2 = _load_shared("f32x2")
load_shared_f32x4 = _load_shared("f32x4")

store_shared_u16 = _store_shared("u16")
store_shared_u32 = _store_shared("u32")
store_shared_u32x2 = _store_shared("u32x2")
store_shared_u32x4 = _store_shared("u32x4")
store_shared_f32 = _store_shared("f32")
store_shared_f32x2 = _store_shared("f32x2")
store_shared_f32x4 = _store_shared("f32x4")

load_global_u16 = _load_global("u16")
load_global_u32 = _load_global("u32")
load_global_u32x2 = _load_global("u32x2")
load_global_u32x4 = _load_global("u32x4")
load_global_f32 = _load_global("f32")

store_global_u16 = _store_global("u16")
store_global_u32 = _store_global("u32")
store_global_u32x2 = _store_global("u32x2")
store_global_u32x4 = _store_global("u32x4")
store_global_f32 = _store_global("f32")
