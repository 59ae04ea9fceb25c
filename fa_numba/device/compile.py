"""From a kernel to a cubin, with a driver or without.

Numba turns the function into LLVM, libNVVM that into PTX, and nvJitLink (or the program ``ptxas``,
where nvJitLink is not installed) that into machine code for one architecture. The last two come as
Python packages; a GPU is not needed.

This module and `fa_numba.device.lowering` are the only ones that import Numba. A launch whose cubin
is in the cache does not load them.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cuda.core import Linker, LinkerOptions, ObjectCode
from cuda.pathfinder import find_nvidia_binary_utility
from numba import cuda
from numba.cuda import types

from fa_numba.device.cache import Compiled
from fa_numba.device.kernel import Kernel
from fa_numba.device.lowering import bind, numba_type

__all__ = ["CompileError", "compile_kernel", "cubin_of", "ptx_of"]

_ENTRY = re.compile(r"\.visible \.entry (\w+)\(")
_TARGET = re.compile(r"sm_(\d+)(\d)([af]?)")


class CompileError(Exception):
    """A kernel could not be compiled, or an installed compiler is missing."""


def compile_kernel(kernel: Kernel, target: str) -> Compiled:
    """Compile a kernel for one architecture.

    Parameters
    ----------
    kernel : Kernel
        What to compile.
    target : str
        Architecture, such as ``"sm_80"`` or ``"sm_90a"``.

    Returns
    -------
    Compiled
        With the PTX and the assembler's report.

    Raises
    ------
    CompileError
        If Numba refuses the function, or it needs instructions that the target lacks.
    """
    symbol, ptx = ptx_of(kernel, target)
    cubin, log = cubin_of(ptx, target)
    return Compiled(cubin=cubin, symbol=symbol, target=target, ptx=ptx, log=log)


def ptx_of(kernel: Kernel, target: str) -> tuple[str, str]:
    """Compile a kernel to PTX.

    Parameters
    ----------
    kernel, target
        See `compile_kernel`.

    Returns
    -------
    symbol : str
        Name of the entry: the kernel's, as far as PTX allows.
    ptx : str
        The program.

    Raises
    ------
    CompileError
        See `compile_kernel`.
    """
    signature = types.void(*[numba_type(t, 0) for t in kernel.parameters.values()])
    try:
        ptx, _ = cuda.compile(
            bind(kernel.function),
            signature,
            cc=_compute_capability(target),
            device=False,
            abi="numba",
            # Numba's fast mathematics would let LLVM assume that nothing is infinite.
            fastmath=False,
            launch_bounds=(kernel.num_threads, 1),
        )
    except Exception as error:
        raise CompileError(f"kernel {kernel.name} for {target}: {error}") from error
    (entry,) = _ENTRY.findall(ptx)
    symbol = re.sub(r"\W", "_", kernel.name)
    return symbol, ptx.replace(entry, symbol)


def cubin_of(ptx: str, target: str) -> tuple[bytes, str]:
    """Assemble PTX.

    Parameters
    ----------
    ptx : str
        The program.
    target : str
        Architecture.

    Returns
    -------
    cubin : bytes
        Machine code.
    log : str
        The assembler's report: registers, spills, warnings.

    Raises
    ------
    CompileError
        If the PTX is wrong, or neither nvJitLink nor ptxas is installed.
    """
    if has_nvjitlink():
        return _link(ptx, target)
    return _run_ptxas(ptx, target)


def has_nvjitlink() -> bool:
    """Tell whether nvJitLink is installed."""
    return str(Linker.which_backend()) == "nvJitLink"


def _compute_capability(target: str) -> tuple[Any, ...]:
    match = _TARGET.fullmatch(target)
    if match is None:
        raise CompileError(f"target is {target!r}; accepted are names such as 'sm_80' or 'sm_90a'")
    major, minor, suffix = match.groups()
    return (int(major), int(minor), *([suffix] if suffix else []))


def _link(ptx: str, target: str) -> tuple[bytes, str]:
    options = LinkerOptions(arch=target, ptxas_options="-v")
    try:
        linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=options)
        cubin = linker.link("cubin").code
    except Exception as error:
        raise CompileError(f"nvJitLink for {target}: {error}") from error
    return bytes(cubin), linker.get_info_log()


def _run_ptxas(ptx: str, target: str) -> tuple[bytes, str]:
    program = find_nvidia_binary_utility("ptxas")
    if program is None:
        raise CompileError(
            "to compile kernels install nvJitLink or ptxas: pip install nvidia-nvjitlink"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [program, f"-arch={target}", "-v", "-O3", str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(f"ptxas: {done.stderr}")
        return output.read_bytes(), done.stderr
