"""Ops made of instructions: written once, executed by NumPy or compiled to LLVM.

The body of a composite op takes a *builder* and the arguments, and says what to do with whole
fragments at once::

    @composite("f32[n](f32[n], f32, f32)", since=(5, 0), section="mul")
    def scale_rows(b, fragment, scale_0, scale_1):
        return b.map(mul, fragment, b.by_row(len(fragment), scale_0, scale_1))

`NumpyBuilder` applies the emulation of each instruction to arrays; the builder in
`fa_numba.device.lowering` emits the instruction for each register. A fragment is a NumPy array for
the one and a list of LLVM values for the other: both have a length, can be sliced, and are joined
by the builder. Python branches and loops in a body are resolved when it is compiled; they may
depend on lengths, not on values.
"""

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from fa_numba.device.ops.declare import Op
from fa_numba.device.types import FragmentType
from fa_numba.indexing.fragment_layout import acc_coord

__all__ = [
    "Builder",
    "Composite",
    "NumpyBuilder",
    "column_of_element",
    "composite",
    "row_of_element",
]


INTEGER_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "*": operator.mul,
    "&": operator.and_,
    ">>": operator.rshift,
}


class Builder(Protocol):
    """What a body may ask for."""

    def map(self, op: Op, *operands: Any) -> Any:
        """Apply an op to registers: element by element where operands are fragments."""

    def by_row(self, size: int, first: Any, second: Any) -> Any:
        """Return an accumulator with `first` in the thread's first row, `second` in the other."""

    def constants(self, numbers: Sequence[int]) -> Any:
        """Return a fragment of these integers."""

    def fill(self, size: int, value: Any) -> Any:
        """Return a fragment with `value` in all elements."""

    def join(self, *parts: Any) -> Any:
        """Return a fragment of these parts: fragments and single registers."""

    def interleave(self, even: Any, odd: Any) -> Any:
        """Return the fragment with elements ``even[0], odd[0], even[1], …``."""

    def integer(self, symbol: str, x: Any, y: Any) -> Any:
        """Compute with 32-bit registers: ``+``, ``*``, ``&``, and ``>>``, which shifts in zeros."""

    def loop(self, count: Any, carried: Any, body: Callable[[Any, Any], Any]) -> Any:
        """Run ``fragment = body(i, fragment)`` for i from 0 to `count`, and return the last."""


def row_of_element(element: int) -> int:
    """Return which of a thread's two rows an accumulator element belongs to: 0 or 1."""
    return acc_coord(0, element)[0] // 8


def column_of_element(element: int) -> int:
    """Return the column of an accumulator element, counted from that of the thread's element 0."""
    return acc_coord(0, element)[1]


class NumpyBuilder:
    """Executes a body on arrays, all registers of a fragment at once."""

    def map(self, op: Op, *operands: Any) -> Any:
        """Apply the op's emulation."""
        return op.emulation(*operands)

    def by_row(self, size: int, first: Any, second: Any) -> Any:
        """See `Builder.by_row`."""
        return np.where(_is_first_row(size), first, second)

    def constants(self, numbers: Sequence[int]) -> Any:
        """See `Builder.constants`."""
        return np.array(numbers)

    def fill(self, size: int, value: Any) -> Any:
        """See `Builder.fill`."""
        return np.full(size, value)

    def join(self, *parts: Any) -> Any:
        """See `Builder.join`."""
        return np.concatenate([np.atleast_1d(part) for part in parts])

    def interleave(self, even: Any, odd: Any) -> Any:
        """See `Builder.interleave`."""
        return np.stack([even, odd], axis=1).reshape(-1)

    def integer(self, symbol: str, x: Any, y: Any) -> Any:
        """See `Builder.integer`."""
        return INTEGER_OPERATORS[symbol](x, y) & 0xFFFFFFFF

    def loop(self, count: Any, carried: Any, body: Callable[[Any, Any], Any]) -> Any:
        """See `Builder.loop`."""
        for i in range(count):
            carried = body(i, carried)
        return carried


class CallingBuilder(NumpyBuilder):
    """Executes a body by calling its ops, so that each is a step of the emulated thread."""

    def map(self, op: Op, *operands: Any) -> Any:
        """Call the op, for each element where operands are fragments."""
        sizes = {len(x) for x in operands if np.ndim(x)}
        if not sizes:
            return op(*operands)
        (size,) = sizes
        columns = [x if np.ndim(x) else [x] * size for x in operands]
        return np.array([op(*row) for row in zip(*columns, strict=True)])


_NUMPY = NumpyBuilder()
_CALLING = CallingBuilder()


@cache
def _is_first_row(size: int) -> Any:
    return np.array([row_of_element(i) == 0 for i in range(size)])


class Composite(Op):
    """An op whose body is made of other ops.

    Attributes
    ----------
    body : callable
        Takes a builder and the arguments.
    stepwise : bool
        Whether the emulator runs the body op by op, other threads in between: for bodies with ops
        that act on the machine. Otherwise the whole body is one step.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        signature: str,
        *,
        stepwise: bool = False,
        emulation: Callable[..., Any] | None = None,
        **properties: Any,
    ) -> None:
        super().__init__(body, signature, **properties)
        self.body = body
        self.stepwise = stepwise
        self.emulation = emulation or self._run_body

    def _run_body(self, *values: Any) -> Any:
        return self._finish(self.body(_NUMPY, *values))

    def _finish(self, result: Any) -> Any:
        """Give the result its declared type."""
        if not isinstance(self.result, FragmentType):
            return None if self.result is None else self.result.convert(result)
        fragment = np.asarray(result, self.result.dtype)
        fragment.flags.writeable = False
        return fragment

    def steps(self, *args: Any) -> Any:
        """Run the body by calling its ops."""
        values = [convert(x) for convert, x in zip(self._converters, args, strict=True)]
        return self._finish(self.body(_CALLING, *values))

    def __call__(self, *args: Any) -> Any:
        """Emulate the op."""
        return self.steps(*args) if self.stepwise else super().__call__(*args)


def composite(
    signature: str,
    *,
    since: tuple[int, int],
    section: str,
    cycles: int = 1,
    stepwise: bool = False,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Composite]:
    """Declare a composite op by decorating its body.

    Parameters
    ----------
    signature : str
        Types by tag, for instance ``"f32[n](f32[n], f32, f32)"``.
    since, section, cycles
        See `fa_numba.device.ops.declare.Op`.
    stepwise : bool
        See `Composite`.
    name : str, optional
        Defaults to the function's name.

    Returns
    -------
    callable
        The decorator.
    """

    def declare(body: Callable[..., Any]) -> Composite:
        op = Composite(
            body, signature, since=since, section=section, cycles=cycles, stepwise=stepwise
        )
        if name is not None:
            op.name = op.__name__ = op.__qualname__ = name
        return op

    return declare
