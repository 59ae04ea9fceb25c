"""How to hand the functions of this package to a compiler.

Numba compiles a function together with those that it calls, provided that these are compiled
functions themselves; a plain Python function in the globals is refused. The functions here call
each other as plain Python, since this package must not know any compiler. `bind` closes the gap: it
decorates a function *and*, first, every function of this package that it calls, and leaves the
originals alone.

>>> from fa_numba.indexing import bind, block_range
>>> count = bind.bind(block_range.num_m_blocks, lambda function: function)
>>> count(128, 300, 1)
3

With ``numba.njit`` as the decorator the result is a compiled host function, with
``numba.cuda.jit(device=True, inline="always")`` one that kernels can call.
"""

from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = __name__.rpartition(".")[0]


def in_this_package(function: Callable[..., Any]) -> bool:
    """Tell whether a function belongs to `fa_numba.indexing`."""
    return (function.__module__ or "").startswith(_PACKAGE)


def bind(
    function: Callable[..., Any],
    decorate: Callable[[Callable[..., Any]], Any],
    bound: dict[Callable[..., Any], Any] | None = None,
    *,
    which: Callable[[Callable[..., Any]], bool] = in_this_package,
) -> Any:
    """Decorate a function and those that it calls.

    Callees are found in its globals, in its closure, and as ``module.callee``.

    Parameters
    ----------
    function : callable
        A function of `fa_numba.indexing`, or one that calls some.
    decorate : callable
        What to apply to each function, for instance ``numba.njit``.
    bound : dict, optional
        Results of earlier calls with the same decorator, by function. It is read and extended, so
        that a function with many callers is decorated once.
    which : callable
        Takes a callee, a plain Python function, and says whether it is to be decorated.

    Returns
    -------
    object
        What `decorate` returns for a copy of `function` that refers to the decorated callees.

    Raises
    ------
    ValueError
        If a function calls itself, directly or through others.
    """
    bound = {} if bound is None else bound
    if function not in bound:
        assert isinstance(function, FunctionType)
        bound[function] = _IN_PROGRESS

        def replace(value: Any) -> Any:
            if isinstance(value, FunctionType) and which(value):
                return bind(value, decorate, bound, which=which)
            return value

        bound[function] = decorate(_copy(function, replace))
    if bound[function] is _IN_PROGRESS:
        raise ValueError(f"{function.__name__} calls itself; such a function cannot be bound")
    return bound[function]


def referenced(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function refers to: its globals, its closure, and ``module.attribute``.

    Parameters
    ----------
    function : function
        Its nested functions count as part of it.

    Yields
    ------
    name : str
    value : object
        Names that are not defined (yet) are left out.
    """
    used = _names(function.__code__)
    for name in sorted(used):
        value = function.__globals__.get(name, _MISSING)
        if isinstance(value, ModuleType):
            for attribute in sorted(used & vars(value).keys()):
                yield f"{name}.{attribute}", vars(value)[attribute]
        elif value is not _MISSING:
            yield name, value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


_MISSING = object()
_IN_PROGRESS = object()


def _copy(function: FunctionType, replace: Callable[[Any], Any]) -> FunctionType:
    """Copy a function with what it refers to replaced."""
    used = _names(function.__code__)
    namespace = dict(function.__globals__)
    for name in used & namespace.keys():
        value = namespace[name]
        namespace[name] = (
            _copy_module(value, used, replace) if isinstance(value, ModuleType) else replace(value)
        )
    cells = tuple(CellType(replace(cell.cell_contents)) for cell in function.__closure__ or ())
    copy = FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, cells
    )
    copy.__doc__ = function.__doc__
    copy.__module__ = function.__module__
    return copy


def _copy_module(module: ModuleType, used: set[str], replace: Callable[[Any], Any]) -> ModuleType:
    """Return the module, or where something used in it is replaced, a stand-in for it."""
    replaced = {}
    for name in used & vars(module).keys():
        value = vars(module)[name]
        if isinstance(value, FunctionType) and (new := replace(value)) is not value:
            replaced[name] = new
    if not replaced:
        return module
    stand_in = ModuleType(module.__name__, module.__doc__)
    vars(stand_in).update({**vars(module), **replaced})
    return stand_in


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that code uses, nested functions included."""
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*[_names(inner) for inner in nested])
