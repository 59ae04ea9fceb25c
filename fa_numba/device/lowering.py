"""From ops to LLVM: how a kernel becomes one that Numba compiles.

Numba asks every object that a kernel names for its type. Ops and the casts of
`fa_numba.device.types` answer with `function_type` and `cast_type`, so that a user's own
``@cuda.jit`` kernel can call them like anything that Numba knows.

What remains for our kernels are the plain Python functions that they call, of this package or the
user's: `bind` turns these into device functions. No driver and no GPU is needed for any of it.

This module and `fa_numba.device.compile` are the only ones that import Numba.
"""

from collections.abc import Callable, Sequence
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from numba.cuda import types
from numba.cuda.compiler import compile_cuda
from numba.cuda.core.errors import TypingError
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.typing.templates import make_intrinsic_template

from fa_numba.device.llvm import LlvmBuilder
from fa_numba.device.ops.declare import Op
from fa_numba.device.types import DeviceType, FragmentType
from fa_numba.indexing import bind as binding

__all__ = ["DeviceFunction", "bind", "cast_type", "function_type", "numba_type"]


def numba_type(t: DeviceType | FragmentType | None, n: int) -> Any:
    """Return Numba's type of a value, with `n` registers where the count is open."""
    if t is None:
        return types.void
    if isinstance(t, FragmentType):
        return types.UniTuple(numba_type(t.element, n), t.count(n))
    return getattr(types, t.numba_name)


def cast_type(t: DeviceType) -> Any:
    """Return Numba's type of a cast, which is a type's name called like a function."""
    return types.NumberClass(numba_type(t, 0))


def _compute_capability() -> tuple[int, int]:
    """Return what Numba is compiling for; meaningful inside code generation only."""
    major, minor = ConfigStack().top().compute_capability[:2]
    return major, minor


@cache
def function_type(op: Op) -> Any:
    """Return Numba's type of an op: a function whose lowering emits the op."""

    def typer(typing_context: Any, *arguments: Any) -> Any:
        if len(arguments) != len(op.parameters):
            raise TypingError(f"{op.name} takes {len(op.parameters)} arguments")
        n = _check_types(op, arguments)
        signature = numba_type(op.result, n)(*[numba_type(t, n) for t in op.parameters])

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            target = LlvmBuilder(builder, _compute_capability())
            operands = [
                target.unpack(value, t, numba_argument)
                for value, t, numba_argument in zip(
                    values, op.parameters, signature.args, strict=True
                )
            ]
            result = target.emit(op, operands)
            if op.result is None:
                return context.get_dummy_value()
            return target.pack(result, op.result)

        return signature, generate

    # Numba takes the parameters from here, and a first one that it leaves out.
    names = ["typing_context", *op.__signature__.parameters]
    typer.__signature__ = Signature([Parameter(x, Parameter.POSITIONAL_ONLY) for x in names])  # type: ignore[attr-defined]
    template = make_intrinsic_template(op, typer, op.name, kwargs={"target": "cuda"})
    return types.Function(template)


def _check_types(op: Op, arguments: Sequence[Any]) -> int:
    """Return the number of registers of an op's fragments, refusing what Numba would cast badly."""
    n = 0
    for position, (t, argument) in enumerate(zip(op.parameters, arguments, strict=True)):
        if isinstance(t, FragmentType):
            right = isinstance(argument, types.BaseTuple)
            if right and t.size == "n":
                right = n in (0, len(argument))
                n = len(argument)
            elif right:
                right = len(argument) == t.count(0)
        elif t.tag in ("f32", "pred"):
            right = isinstance(argument, types.Number | types.Boolean)
        else:
            right = isinstance(argument, types.Integer | types.Boolean)
        if not right:
            raise TypingError(
                f"argument {position + 1} of {op.name} is {argument}; accepted is {t!r}"
            )
    return n


class DeviceFunction(CUDADispatcher):
    """A plain function that kernels call: compiled for its caller's architecture, and inlined.

    Numba's own device functions ask the driver for the architecture, or are copied into every
    caller before types are known, which takes several times as long.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        options = {"device": True, "forceinline": True, "debug": False, "lineinfo": False}
        super().__init__(function, targetoptions=options)

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile for types of arguments; once for each."""
        if args not in self.overloads:
            result = compile_cuda(
                self.py_func,
                return_type,
                args,
                forceinline=True,
                nvvm_options={"opt": 3, "fastmath": False},
                cc=ConfigStack().top().compute_capability,
            )
            self.overloads[args] = result
            result.target_context.insert_user_function(
                result.entry_point, result.fndesc, [result.library]
            )
        return self.overloads[args]


def bind(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a kernel's function with all plain functions that it calls made device functions.

    Parameters
    ----------
    function : callable
        Left alone.

    Returns
    -------
    callable
        A function for ``numba.cuda.compile``.
    """
    return binding.bind(function, DeviceFunction, which=lambda callee: True).py_func
