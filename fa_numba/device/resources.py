"""What a compiled kernel takes: registers, shared memory, stack, spills, instructions.

Read from the assembler's report and, for instructions, from the disassembly by the program
``nvdisasm`` (package nvidia-cuda-nvdisasm).
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fa_numba.device.cache import Compiled
from fa_numba.device.kernel import Kernel

__all__ = ["SHARED_MEMORY_LIMIT", "Resources", "float64_lines", "resources", "sass_counts"]

SHARED_MEMORY_LIMIT = {
    "sm_75": 64 * 1024,
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_120": 99 * 1024,
}
"""Most bytes of shared memory that a block may ask for, by architecture (CUDA C++ Programming
Guide, "Technical specifications per compute capability", less 1 KiB for the system where it says
so)."""

_NUMBER = {
    "registers": r"Used (\d+) registers",
    "static_shared": r"(\d+) bytes smem",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
}
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE
)
_FLOAT64 = re.compile(r"\.f64\b")


@dataclass(frozen=True)
class Resources:
    """What a kernel takes.

    Attributes
    ----------
    kernel : str
        Its name.
    target : str
        Architecture.
    threads : int
        Of a block.
    registers : int
        Of a thread.
    shared_bytes : int
        Of a block, static and dynamic.
    stack : int
        Bytes of a thread in local memory. Anything but 0 is slow.
    spill_stores, spill_loads : int
        Bytes of registers moved there and back.
    cubin_bytes : int
        Size of the machine code's file.
    warnings : tuple of str
        What the assembler said about performance, such as serialised WGMMA.
    sass : mapping of str to int
        Instructions by name with all suffixes; empty if they were not asked for.
    """

    kernel: str
    target: str
    threads: int
    registers: int
    shared_bytes: int
    stack: int
    spill_stores: int
    spill_loads: int
    cubin_bytes: int
    warnings: tuple[str, ...]
    sass: Mapping[str, int] = field(default_factory=dict)

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory that a block of the target may have."""
        return SHARED_MEMORY_LIMIT[self.target.rstrip("af")]

    def problems(self) -> list[str]:
        """Return what makes the kernel slow or impossible to launch."""
        found = list(self.warnings)
        if self.stack or self.spill_stores or self.spill_loads:
            found.append(
                f"local memory: {self.stack} bytes of stack, {self.spill_stores} bytes stored and "
                f"{self.spill_loads} loaded by spills"
            )
        if self.shared_bytes > self.shared_limit:
            found.append(f"{self.shared_bytes} bytes of shared memory, {self.shared_limit} exist")
        if self.registers * self.threads > 65536:
            found.append(f"{self.registers} registers for {self.threads} threads, 65536 exist")
        return found

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"{self.kernel} {self.target}: {self.registers} registers, {self.shared_bytes} bytes "
            f"of shared memory, {self.stack} bytes of stack, "
            f"{self.spill_stores + self.spill_loads} bytes of spills, {self.threads} threads"
        )


def resources(kernel: Kernel, compiled: Compiled, *, sass: bool = False) -> Resources:
    """Return what a kernel takes.

    Parameters
    ----------
    kernel : Kernel
        Gives the number of threads and the dynamic shared memory.
    compiled : Compiled
        The same kernel compiled.
    sass : bool
        Whether to count its instructions; needs nvdisasm.

    Returns
    -------
    Resources

    Raises
    ------
    FileNotFoundError
        If nvdisasm is needed and not installed.
    """
    numbers = {}
    for name, pattern in _NUMBER.items():
        match = re.search(pattern, compiled.log)
        numbers[name] = int(match[1]) if match else 0
    lines = compiled.log.splitlines()
    return Resources(
        kernel=kernel.name,
        target=compiled.target,
        threads=kernel.num_threads,
        shared_bytes=kernel.smem_bytes + numbers.pop("static_shared"),
        cubin_bytes=len(compiled.cubin),
        warnings=tuple(line for line in lines if "warning" in line or "Potential" in line),
        sass=sass_counts(compiled) if sass else {},
        **numbers,
    )


def sass_counts(compiled: Compiled) -> dict[str, int]:
    """Count the machine instructions of a kernel.

    Parameters
    ----------
    compiled : Compiled
        The kernel. Helper functions that the assembler added are left out.

    Returns
    -------
    dict
        Name with all suffixes, such as ``"LDG.E.128"``, to how often it stands there.

    Raises
    ------
    FileNotFoundError
        If nvdisasm is not installed.
    """
    from cuda.pathfinder import find_nvidia_binary_utility

    program = find_nvidia_binary_utility("nvdisasm")
    if program is None:
        raise FileNotFoundError("install nvdisasm: pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.cubin)
        listing = subprocess.run(
            [program, "-c", str(path)], capture_output=True, text=True, check=True
        ).stdout
    _, _, code = listing.partition(f"\n.text.{compiled.symbol}:\n")
    code, _, _ = code.partition("\n//-----")
    return dict(sorted(Counter(_INSTRUCTION.findall(code)).items()))


def float64_lines(ptx: str) -> list[str]:
    """Return the lines of a program that compute in float64.

    Numba makes float64 of ``/``, of an integer beside a float32, and of a float32 beside a literal;
    on most GPUs that runs at 1/64 of the speed.

    Parameters
    ----------
    ptx : str
        The program.

    Returns
    -------
    list of str
    """
    return [line.strip() for line in ptx.splitlines() if _FLOAT64.search(line)]
