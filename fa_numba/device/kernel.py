"""What a kernel is: a plain function, and the threads and the memory that a block of it has."""

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from fa_numba.device.types import DeviceType

__all__ = ["Kernel", "kernel"]


@dataclass(frozen=True)
class Kernel:
    """A kernel, ready to be compiled or emulated.

    Attributes
    ----------
    function : callable
        Called once by every thread. It returns nothing, and its parameters are annotated with
        `fa_numba.device.types`.
    name : str
        Names the kernel in reports, traces and the compile cache.
    block : tuple of int
        Threads of a block in x, y, z.
    smem_bytes : int
        Dynamic shared memory of a block.
    key : hashable
        The configuration that the function was made from: two kernels of one name and key are
        the same program.
    """

    function: Callable[..., None]
    name: str
    block: tuple[int, int, int]
    smem_bytes: int
    key: Hashable

    @cached_property
    def parameters(self) -> dict[str, DeviceType]:
        """The parameters in order, name to type.

        Raises
        ------
        TypeError
            If a parameter is not annotated with a type of `fa_numba.device.types`.
        """
        found = {}
        for parameter in inspect.signature(self.function, eval_str=True).parameters.values():
            if not isinstance(parameter.annotation, DeviceType):
                raise TypeError(
                    f"parameter {parameter.name} of kernel {self.name} is annotated with "
                    f"{parameter.annotation!r}; accepted are the types of fa_numba.device.types"
                )
            found[parameter.name] = parameter.annotation
        return found

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        x, y, z = self.block
        return x * y * z


def kernel(
    *,
    block: int | tuple[int, ...],
    smem_bytes: int = 0,
    name: str | None = None,
    key: Hashable = (),
) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a `Kernel` of the decorated function.

    Parameters
    ----------
    block : int or tuple of int
        Threads of a block: in x, or in x, y and z. At most 1024 together.
    smem_bytes : int
        Dynamic shared memory of a block.
    name : str, optional
        Defaults to the function's name.
    key : hashable
        The configuration, for the compile cache. Every value that the function closes over must
        follow from it.

    Returns
    -------
    callable
        The decorator.

    Raises
    ------
    ValueError
        If the block or the shared memory cannot exist on any GPU.
    TypeError
        If what is decorated is not a plain function.
    """
    sizes = (block,) if isinstance(block, int) else tuple(block)
    x, y, z = (*sizes, 1, 1)[:3]
    if len(sizes) > 3 or min(x, y, z) < 1 or x * y * z > 1024:
        raise ValueError(f"block is {block}; accepted are 1 to 3 sizes, at most 1024 threads")
    if smem_bytes < 0:
        raise ValueError(f"smem_bytes is {smem_bytes}; accepted are values >= 0")

    def decorate(function: Callable[..., Any]) -> Kernel:
        if not isinstance(function, FunctionType):
            raise TypeError(f"a kernel is made of a plain function, got {function!r}")
        return Kernel(function, name or function.__name__, (x, y, z), smem_bytes, key)

    return decorate
