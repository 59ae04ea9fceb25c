"""The facts the doctor works from, and how they are found on this machine."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "BASE_MODULES",
    "Facts",
    "Gpu",
    "ask_driver",
    "base_requirements",
    "collect",
    "import_error",
    "installed_packages",
    "parse_driver_version",
    "parse_requirements",
    "query_driver_api",
    "query_driver_version",
    "try_reference",
]

# Distribution -> the module whose import shows that it works.
BASE_MODULES = {
    "numpy": "numpy",
    "ml_dtypes": "ml_dtypes",
    "numba": "numba",
    "numba-cuda": "numba_cuda",
    "cuda-core": "cuda.core",
}

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU: its name and compute capability, ``"9.0"`` for Hopper."""

    name: str
    compute_capability: str

    @property
    def sm(self) -> str:
        """Compute capability as compilers write it: ``"90"``."""
        return self.compute_capability.replace(".", "")


@dataclass(frozen=True)
class Facts:
    """What :func:`collect` saw. Every field has a value for "could not tell".

    Parameters
    ----------
    python, system : str
        Version of Python; operating system with machine type.
    packages : mapping of str to str
        Installed distributions: name in lower case with hyphens (``ml_dtypes`` keeps its
        underscore) to version.
    import_errors : mapping of str to str
        Base dependency to the error its import gave; absent when it imports.
    requirements : mapping of str to str
        Versions of each base dependency that will do, such as ``">=2.3,<2.5"``, from the metadata
        of fa_numba; empty when fa_numba is not installed.
    numba_cuda_active : bool or None
        Whether ``numba.cuda`` is the one of numba-cuda; None when Numba does not import.
    driver : str or None
        Version of the NVIDIA driver, such as ``"580.65.06"``; None without one.
    driver_cuda : tuple of int or None
        Newest CUDA (major, minor) the driver supports.
    driver_problem : str or None
        Why a driver that is there does not answer.
    gpus : tuple of Gpu
        The GPUs the driver shows.
    reference_problem : str or None
        Why a small attention call failed; None when its result was right.
    """

    python: str
    system: str
    packages: Mapping[str, str]
    import_errors: Mapping[str, str] = field(default_factory=dict)
    requirements: Mapping[str, str] = field(default_factory=dict)
    numba_cuda_active: bool | None = None
    driver: str | None = None
    driver_cuda: tuple[int, int] | None = None
    driver_problem: str | None = None
    gpus: tuple[Gpu, ...] = ()
    reference_problem: str | None = None


DriverAnswer = tuple[tuple[int, int] | None, tuple[Gpu, ...], str | None]


def collect() -> Facts:
    """Look at this machine. A probe that fails becomes a fact; nothing is raised."""
    errors = {name: import_error(module) for name, module in BASE_MODULES.items()}
    driver_cuda, gpus, driver_problem = query_driver_api()
    return Facts(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages=installed_packages(),
        import_errors={name: error for name, error in errors.items() if error is not None},
        requirements=base_requirements(),
        numba_cuda_active=None if errors["numba"] else _numba_cuda_active(),
        driver=query_driver_version(),
        driver_cuda=driver_cuda,
        driver_problem=driver_problem,
        gpus=gpus,
        reference_problem=try_reference(),
    )


# ----------------------------------------------------------------------------------- packages


def _normalize(name: str) -> str:
    # PEP 503, except that ml_dtypes is written as everybody writes it.
    normalized = re.sub(r"[-_.]+", "-", name).lower()
    return "ml_dtypes" if normalized == "ml-dtypes" else normalized


def installed_packages() -> dict[str, str]:
    """Name and version of every installed distribution whose metadata can be read."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a half-removed package leaves a folder without metadata
            found.setdefault(_normalize(name), distribution.version)
    return found


def import_error(module: str) -> str | None:
    """Import a module; the error as text, or None when it imports."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:  # a broken binary may raise anything, and the report must come
        return f"{type(error).__name__}: {error}"
    return None


def base_requirements() -> dict[str, str]:
    """Versions of the base dependencies that will do, as the metadata of fa_numba says."""
    try:
        return parse_requirements(importlib.metadata.requires("fa_numba") or [])
    except importlib.metadata.PackageNotFoundError:
        return {}


def parse_requirements(requires: Iterable[str]) -> dict[str, str]:
    """Name and bounds of each requirement that has some and belongs to no extra."""
    bounds = {}
    for line in requires:
        match = re.fullmatch(r"\s*([A-Za-z0-9_.-]+)\s*([<>=,0-9. ]+)", line)
        if match:
            bounds[_normalize(match[1])] = match[2].replace(" ", "")
    return bounds


def _numba_cuda_active() -> bool:
    try:
        cuda = importlib.import_module("numba.cuda")
    except Exception:  # however it fails, numba-cuda has not taken its place
        return False
    return getattr(cuda, "implementation", "") == "NVIDIA"


def try_reference() -> str | None:
    """Run one small attention call: None when its result is right, else what went wrong.

    With q = 0 every key weighs the same: the output is the mean of v, and lse is ln(seqlen_k).
    """
    try:
        np = importlib.import_module("numpy")
        fa_numba = importlib.import_module("fa_numba")
        q = np.zeros((1, 2, 1, 4), np.float32)
        v = np.arange(12, dtype=np.float32).reshape(1, 3, 1, 4)
        out, lse = fa_numba.flash_attn_func(q, v, v, return_lse=True)
        if not np.allclose(out, v.mean(axis=1, keepdims=True)) or not np.allclose(lse, np.log(3)):
            return "a small attention call gave a wrong result"
    except Exception as error:  # whatever breaks the call is the finding
        return f"{type(error).__name__}: {error}"
    return None


# ------------------------------------------------------------------------------------- driver


def query_driver_version() -> str | None:
    """Version of the NVIDIA driver by nvidia-smi; None without one, or when it fails."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_driver_version(result.stdout)


def parse_driver_version(text: str) -> str | None:
    """First line of nvidia-smi's answer, if it is a version: a broken driver prints a sentence."""
    match = re.match(r"\s*(\d+(?:\.\d+)+)\s*(?:\n|$)", text)
    return match[1] if match else None


def query_driver_api() -> DriverAnswer:
    """CUDA version of the driver, its GPUs, and what is wrong with a driver that fails."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None, (), None
    try:
        return ask_driver(library)
    except AttributeError as error:  # a stub for linking, without a driver behind it
        return None, (), f"{name} is not a driver: {error}"


def ask_driver(library: ctypes.CDLL) -> DriverAnswer:
    """Ask an opened driver library (or what stands for one in a test)."""
    version = ctypes.c_int()
    driver_cuda = None
    if library.cuDriverGetVersion(ctypes.byref(version)) == 0:
        driver_cuda = (version.value // 1000, version.value % 1000 // 10)
    status = library.cuInit(0)
    if status != 0:
        return driver_cuda, (), f"cuInit failed with CUDA error {status}"
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return driver_cuda, tuple(_ask_gpu(library, i) for i in range(count.value)), None


def _ask_gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
    library.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device)
    return Gpu(name.value.decode(errors="replace"), f"{major.value}.{minor.value}")
