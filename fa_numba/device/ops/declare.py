"""How an op is declared: once, with its PTX, its types, its emulation and its documentation.

The decorated function *is* the emulation, and its docstring the op's::

    @instruction("ex2.approx.ftz.f32 $0, $1;", "f32(f32)", since=(5, 0), section="ex2")
    def ex2(x):
        '''Return 2 to the power of x ...'''
        return np.exp2(x)

In a kernel an op is called like a function. In the emulator that runs the emulation; on the GPU
`fa_numba.device.lowering` turns the op into a Numba intrinsic that emits the PTX.

A *pure* op depends on its arguments only, and can be called anywhere. An op with a side effect acts
on the machine: its emulation takes the running thread first, and outside a kernel it refuses.

`Composite` ops (see `fa_numba.device.ops.builder`) are made of instructions.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fa_numba.device.emulator import state
from fa_numba.device.types import parse_type

__all__ = ["Instruction", "Op", "Signature", "instruction"]

_SIGNATURE = re.compile(r"([^(]+)\(([^)]*)\)")


class Signature:
    """The types of an op, read from text such as ``"f32(f32, f32)"`` or ``"void(u32)"``.

    Attributes
    ----------
    parameters : tuple of DeviceType or FragmentType
        In order.
    result : DeviceType, FragmentType or None
        None if the op returns nothing.
    """

    def __init__(self, text: str) -> None:
        match = _SIGNATURE.fullmatch(text)
        if match is None:
            raise ValueError(f"signature is {text!r}; accepted is 'result(parameter, ...)'")
        tags = [tag for tag in match[2].replace(" ", "").split(",") if tag]
        parameters = [parse_type(tag) for tag in tags]
        self.parameters = tuple(t for t in parameters if t is not None)
        self.result = parse_type(match[1])


class Op:
    """Something that kernels call like a function, and both machines know how to do.

    Attributes
    ----------
    name : str
        As kernels spell it.
    parameters : tuple of DeviceType or FragmentType
        Types of the parameters.
    result : DeviceType, FragmentType or None
        Type of the result.
    side_effect : bool
        Whether the op acts on memory or on other threads. The compiler neither moves nor drops it.
    needs_thread : bool
        Whether the op means something in a running thread only: ops with a side effect, and those
        that ask the machine something, like the thread's index.
    cycles : int
        Issue cost in the emulator's "time" schedule and trace.
    since : tuple of int
        First compute capability that has the instruction.
    section : str
        Where the PTX ISA manual describes it.
    emulation : callable
        Takes the converted arguments; before them the running thread, if the op has a side effect.
    """

    def __init__(
        self,
        emulation: Callable[..., Any],
        signature: str,
        *,
        since: tuple[int, int],
        section: str,
        side_effect: bool = False,
        needs_thread: bool = False,
        cycles: int = 1,
    ) -> None:
        types = Signature(signature)
        self.name = self.__name__ = self.__qualname__ = emulation.__name__
        self.__doc__ = emulation.__doc__
        self.__module__ = emulation.__module__
        self.__signature__ = _public_signature(emulation, len(types.parameters))
        self.emulation = emulation
        self.parameters = types.parameters
        self.result = types.result
        self.side_effect = side_effect
        self.needs_thread = needs_thread or side_effect
        self.cycles = cycles
        self.since = since
        self.section = section
        self._converters = tuple(t.convert for t in types.parameters)

    def __call__(self, *args: Any) -> Any:
        """Emulate the op."""
        if len(args) != len(self._converters):
            raise TypeError(f"{self.name} takes {len(self._converters)} arguments, got {len(args)}")
        values = [convert(x) for convert, x in zip(self._converters, args, strict=True)]
        thread = state.current
        if thread is not None:
            return thread.execute(self, values)
        if self.needs_thread:
            raise RuntimeError(
                f"{self.name} acts on a GPU's threads and memory; it runs in a kernel, on a GPU or "
                "in fa_numba.emulate()"
            )
        with np.errstate(all="ignore"):  # as on the GPU, where nothing warns
            return self.emulation(*values)

    @property
    def _numba_type_(self) -> Any:
        """What Numba takes the op for, asked when a kernel names it."""
        from fa_numba.device.lowering import function_type

        return function_type(self)

    def __repr__(self) -> str:
        """Return the name."""
        return f"<op {self.name}>"


class Instruction(Op):
    """An op that is one instruction of PTX, or a few that belong together.

    Attributes
    ----------
    ptx : str
        Inline PTX: ``$0`` is the result (a fragment takes as many numbers as it has registers), the
        parameters follow (from ``$0`` on if there is no result). Registers of its own belong in a
        ``{ }`` scope. Where it is several instructions, the results are written after the last
        parameter was read: the compiler may give both the same register.
    variants : dict of tuple of int to str
        Other PTX for older GPUs: compute capability to the text that is used below `since`,
        from there on.
    """

    def __init__(
        self,
        emulation: Callable[..., Any],
        signature: str,
        ptx: str,
        *,
        variants: dict[tuple[int, int], str] | None = None,
        **properties: Any,
    ) -> None:
        super().__init__(emulation, signature, **properties)
        self.ptx = ptx
        self.variants = variants or {}

    def ptx_for(self, compute_capability: tuple[int, int]) -> str:
        """Return the PTX for a GPU.

        Raises
        ------
        ValueError
            If the GPU has no such instruction.
        """
        if compute_capability >= self.since:
            return self.ptx
        for since in sorted(self.variants, reverse=True):
            if compute_capability >= since:
                return self.variants[since]
        oldest = min([self.since, *self.variants])
        raise ValueError(
            f"{self.name} needs compute capability {oldest[0]}.{oldest[1]} or newer, "
            f"got {compute_capability[0]}.{compute_capability[1]}"
        )


def instruction(
    ptx: str,
    signature: str,
    *,
    since: tuple[int, int],
    section: str,
    side_effect: bool = False,
    needs_thread: bool = False,
    cycles: int = 1,
    variants: dict[tuple[int, int], str] | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Instruction]:
    """Declare an instruction by decorating its emulation.

    Parameters
    ----------
    ptx, variants
        See `Instruction`.
    signature : str
        Types by tag, for instance ``"f32(f32, f32)"``, ``"u32[4](u64, pred)"`` or ``"void(u32)"``.
    since, section, side_effect, needs_thread, cycles
        See `Op`.
    name : str, optional
        Defaults to the function's name.

    Returns
    -------
    callable
        The decorator.
    """

    def declare(emulation: Callable[..., Any]) -> Instruction:
        op = Instruction(
            emulation,
            signature,
            ptx,
            since=since,
            section=section,
            side_effect=side_effect,
            needs_thread=needs_thread,
            cycles=cycles,
            variants=variants,
        )
        if name is not None:
            op.name = op.__name__ = op.__qualname__ = name
        return op

    return declare


def _public_signature(emulation: Callable[..., Any], count: int) -> inspect.Signature:
    """Return the signature that kernels see: the last `count` parameters."""
    signature = inspect.signature(emulation)
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[len(parameters) - count :])
