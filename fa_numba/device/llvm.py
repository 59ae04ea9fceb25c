"""The bodies of ops as LLVM: inline PTX for each register, and a little around it.

libNVVM reads the LLVM of version 7 for GPUs before Blackwell: pointers have types, and there is no
``fneg``.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from fa_numba.device.ops.builder import INTEGER_OPERATORS, Composite, row_of_element
from fa_numba.device.ops.declare import Instruction, Op
from fa_numba.device.ops.memory import SharedBase
from fa_numba.device.types import DeviceType, FragmentType

__all__ = ["LlvmBuilder"]

_LLVM = {
    "f32": ir.FloatType(),
    "i32": ir.IntType(32),
    "u32": ir.IntType(32),
    "i64": ir.IntType(64),
    "u64": ir.IntType(64),
    "pred": ir.IntType(1),
}
_SHARED_SPACE = 3
_SHARED_NAME = "fa_numba_dynamic_shared_memory"


class LlvmBuilder:
    """Emits a body: see `fa_numba.device.ops.builder.Builder`.

    A register is an LLVM value or, as long as it is constant, a Python number; a fragment is a list
    of them.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Where to emit.
    compute_capability : tuple of int
        What for.
    """

    def __init__(self, builder: ir.IRBuilder, compute_capability: tuple[int, int]) -> None:
        self.builder = builder
        self.compute_capability = compute_capability

    def map(self, op: Op, *operands: Any) -> Any:
        """Emit the op for each element."""
        sizes = {len(x) for x in operands if isinstance(x, list)}
        if not sizes:
            return self.emit(op, operands)
        (size,) = sizes
        columns = [x if isinstance(x, list) else [x] * size for x in operands]
        return [self.emit(op, row) for row in zip(*columns, strict=True)]

    def by_row(self, size: int, first: Any, second: Any) -> list[Any]:
        """Repeat two values as the rows of an accumulator do."""
        return [second if row_of_element(i) else first for i in range(size)]

    def constants(self, numbers: Sequence[int]) -> list[Any]:
        """Return the integers."""
        return list(numbers)

    def fill(self, size: int, value: Any) -> list[Any]:
        """Repeat a value."""
        return [value] * size

    def join(self, *parts: Any) -> list[Any]:
        """Concatenate fragments and registers."""
        return [x for part in parts for x in (part if isinstance(part, list) else [part])]

    def interleave(self, even: list[Any], odd: list[Any]) -> list[Any]:
        """Alternate between two fragments."""
        return [x for pair in zip(even, odd, strict=True) for x in pair]

    def integer(self, symbol: str, x: Any, y: Any) -> Any:
        """Emit integer arithmetic, or do it now where both sides are numbers."""
        if not isinstance(x, ir.Value) and not isinstance(y, ir.Value):
            return INTEGER_OPERATORS[symbol](x, y)
        b = self.builder
        emit = {"+": b.add, "*": b.mul, "&": b.and_, ">>": b.lshr}[symbol]
        return emit(self.value(x, "u32"), self.value(y, "u32"))

    def loop(
        self, count: Any, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """Emit a loop that carries float32 registers."""
        b, i32 = self.builder, _LLVM["i32"]
        start = b.block
        head = b.append_basic_block("loop.head")
        inside = b.append_basic_block("loop.body")
        after = b.append_basic_block("loop.end")
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(i32)
        index.add_incoming(ir.Constant(i32, 0), start)
        registers = [b.phi(_LLVM["f32"]) for _ in carried]
        for register, value in zip(registers, carried, strict=True):
            register.add_incoming(self.value(value, "f32"), start)
        b.cbranch(b.icmp_signed("<", index, self.value(count, "i32")), inside, after)
        b.position_at_end(inside)
        results = body(index, list(registers))
        for register, value in zip(registers, results, strict=True):
            register.add_incoming(self.value(value, "f32"), b.block)
        index.add_incoming(b.add(index, ir.Constant(i32, 1)), b.block)
        b.branch(head)
        b.position_at_end(after)
        return list(registers)

    def value(self, x: Any, tag: str) -> ir.Value:
        """Return a register as an LLVM value."""
        return x if isinstance(x, ir.Value) else ir.Constant(_LLVM[tag], x)

    def emit(self, op: Op, operands: Sequence[Any]) -> Any:
        """Emit an op; fragments come and go as lists."""
        if isinstance(op, Instruction):
            return self._emit_ptx(op, operands)
        if isinstance(op, Composite):
            return op.body(self, *operands)
        if isinstance(op, SharedBase):
            return self._shared_base()
        raise TypeError(f"no lowering for {op!r}")

    def _emit_ptx(self, op: Instruction, operands: Sequence[Any]) -> Any:
        inputs, constraints = [], []
        for t, operand in zip(op.parameters, operands, strict=True):
            element = t.element if isinstance(t, FragmentType) else t
            for x in operand if isinstance(t, FragmentType) else [operand]:
                value = self.value(x, element.tag)
                if element.tag == "pred":
                    value = self.builder.zext(value, _LLVM["u32"])
                inputs.append(value)
                constraints.append(element.ptx_constraint)
        result = op.result
        output: ir.Type = ir.VoidType()
        count = 1
        if isinstance(result, FragmentType):
            count = result.count(0)
            output = ir.LiteralStructType([_LLVM[result.element.tag]] * count)
            constraints = ["=" + result.element.ptx_constraint] * count + constraints
        elif result is not None:
            output = _LLVM[result.tag]
            constraints = ["=" + result.ptx_constraint, *constraints]
        if op.side_effect:
            constraints.append("~{memory}")
        assembly = ir.InlineAsm(
            ir.FunctionType(output, [x.type for x in inputs]),
            op.ptx_for(self.compute_capability),
            ",".join(constraints),
            side_effect=op.side_effect,
        )
        # What has an effect may not be moved into or out of a branch: other threads count on it.
        # What has none may be merged with its like, and dropped.
        attributes = ["convergent", "nounwind"] if op.side_effect else ["readnone", "nounwind"]
        emitted = self.builder.call(assembly, inputs, attrs=attributes)
        if isinstance(result, FragmentType):
            return [self.builder.extract_value(emitted, i) for i in range(count)]
        return emitted

    def _shared_base(self) -> ir.Value:
        module = self.builder.module
        memory = module.globals.get(_SHARED_NAME)
        if memory is None:
            memory = ir.GlobalVariable(
                module, ir.ArrayType(ir.IntType(8), 0), _SHARED_NAME, addrspace=_SHARED_SPACE
            )
            memory.linkage = "external"
            memory.align = 16
        return self.builder.ptrtoint(memory, _LLVM["u32"])

    def unpack(self, value: ir.Value, t: DeviceType | FragmentType, numba_argument: Any) -> Any:
        """Turn an argument as Numba holds it into registers."""
        if isinstance(t, FragmentType):
            return [self.builder.extract_value(value, i) for i in range(len(numba_argument))]
        return value

    def pack(self, registers: Any, t: DeviceType | FragmentType) -> ir.Value:
        """Turn registers into a value as Numba holds it."""
        if not isinstance(t, FragmentType):
            return self.value(registers, t.tag)
        kind = ir.ArrayType(_LLVM[t.element.tag], len(registers))
        packed: ir.Value = ir.Constant(kind, ir.Undefined)
        for i, x in enumerate(registers):
            packed = self.builder.insert_value(packed, self.value(x, t.element.tag), i)
        return packed
