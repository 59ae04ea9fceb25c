"""Compiled kernels on disk.

Compiling takes a second or more, and importing the compiler as long again; so a kernel is compiled
once for each architecture, and looking it up needs neither. The name of a file is a hash of
everything that its content depends on: the kernel's function and all that it calls, their
constants, the kernel's configuration, the sources of this package's device layer, the target, and
the versions of Python and of the compilers. A file is never changed: other sources are another
name.

The folder is ``FA_NUMBA_CACHE_DIR``, or ``fa_numba`` in the platform's folder for caches. It can be
deleted at any time. Processes may share it: a file appears whole or not at all.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from fa_numba.device.kernel import Kernel
from fa_numba.indexing.bind import referenced

__all__ = ["Compiled", "cache_dir", "cache_key", "cached", "load", "store"]

# Whose version changes what comes out. Those that are not installed count as such.
_COMPILERS = (
    "numba",
    "numba-cuda",
    "llvmlite",
    "cuda-core",
    "nvidia-nvvm",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12",
)
_SOURCES = ("device", "fast", "indexing")
_MAGIC = b"fa_numba cubin 1\n"


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code.

    Attributes
    ----------
    cubin : bytes
        What the driver loads.
    symbol : str
        Name of the kernel in it.
    target : str
        Architecture, such as ``"sm_90a"``.
    ptx : str
        The program before the last step; empty if it comes from the cache.
    log : str
        The assembler's report.
    """

    cubin: bytes
    symbol: str
    target: str
    ptx: str = ""
    log: str = ""


def cached(
    kernel: Kernel, target: str, compile_kernel: Callable[[Kernel, str], Compiled]
) -> Compiled:
    """Return a kernel from the cache, compiling it if it is not there.

    Parameters
    ----------
    kernel : Kernel
        What is needed.
    target : str
        Architecture.
    compile_kernel : callable
        Called with both if the cache has nothing, or something damaged.

    Returns
    -------
    Compiled
    """
    path = cache_dir() / f"{cache_key(kernel, target)}.cubin"
    found = load(path)
    if found is None:
        found = compile_kernel(kernel, target)
        # A full disk or a folder that may not be written costs time, not the result.
        with suppress(OSError):
            store(path, found)
    return found


def cache_dir() -> Path:
    """Return the folder of the cache. It need not exist."""
    if chosen := os.environ.get("FA_NUMBA_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fa_numba"


def cache_key(kernel: Kernel, target: str) -> str:
    """Return the hash of everything that the compiled kernel depends on.

    Parameters
    ----------
    kernel : Kernel
        Its ``key`` must have a repr that says all of it, as frozen dataclasses have.
    target : str
        Architecture.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    digest = hashlib.sha256(_environment().encode())
    parameters = [(name, t.name) for name, t in kernel.parameters.items()]
    facts = (kernel.name, kernel.block, kernel.smem_bytes, kernel.key, parameters, target)
    digest.update(repr(facts).encode())
    function = kernel.function
    assert isinstance(function, FunctionType)
    for line in _describe(function, set()):
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def load(path: Path) -> Compiled | None:
    """Read a file of the cache.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Compiled or None
        None if there is no such file, or it is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return None
    magic, checksum, payload = content[: len(_MAGIC)], *_split(content[len(_MAGIC) :])
    if magic != _MAGIC or hashlib.sha256(payload).digest() != checksum:
        return None
    header, _, cubin = payload.partition(b"\n")
    return Compiled(cubin=cubin, **json.loads(header))


def store(path: Path, compiled: Compiled) -> None:
    """Write a file of the cache, so that another process sees all of it or none.

    Parameters
    ----------
    path : Path
        The file; its folder is made.
    compiled : Compiled
        What to write. The PTX is left out.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    header = {"symbol": compiled.symbol, "target": compiled.target, "log": compiled.log}
    payload = json.dumps(header).encode() + b"\n" + compiled.cubin
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _split(content: bytes) -> tuple[bytes, bytes]:
    size = hashlib.sha256().digest_size
    return content[:size], content[size:]


@cache
def _environment() -> str:
    """Return what all kernels of this process depend on."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for folder in _SOURCES:
        for source in sorted((root / folder).rglob("*.py")):
            if "emulator" not in source.parts:
                digest.update(source.relative_to(root).as_posix().encode() + b"\n")
                digest.update(source.read_bytes())
    versions = [f"python {sys.version}"]
    for name in _COMPILERS:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{name} absent")
    # conda's compilers are no Python distributions; its records are named by package and version.
    versions += sorted(path.name for path in Path(sys.prefix, "conda-meta").glob("*nv*.json"))
    return "\n".join([digest.hexdigest(), *versions])


def _describe(function: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    """Yield the byte code and constants of a function and of all that it calls."""
    seen.add(function)
    yield f"{function.__qualname__} {function.__defaults__!r}"
    yield from _describe_code(function.__code__)
    for name, value in referenced(function):
        if isinstance(value, FunctionType):
            yield f"{name} = {value.__module__}.{value.__qualname__}"
            if value not in seen:
                yield from _describe(value, seen)
        elif _is_constant(value):
            yield f"{name} = {value!r}"
        else:
            # Ops are told apart by name; their text is in the sources of the environment.
            yield f"{name} = {getattr(value, 'name', None)} {type(value).__qualname__}"


def _describe_code(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _describe_code(constant)
        else:
            # The order of a set differs from process to process.
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, bool | int | float | str | bytes)
