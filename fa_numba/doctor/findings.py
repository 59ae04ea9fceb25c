"""From facts to findings. Nothing here looks at the machine, so any machine can be described."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fa_numba.doctor.facts import BASE_MODULES, Facts

__all__ = [
    "Family",
    "Finding",
    "Report",
    "cuda_wheels",
    "diagnose",
    "supported_major",
    "version_tuple",
    "within",
]

Level = Literal["ok", "note", "warning", "error"]

PYTHON_MINIMUM = (3, 11)

# Without these two nothing runs; the other base dependencies serve the GPU families only.
REFERENCE_NEEDS = ("numpy", "ml_dtypes")

# CUDA major -> oldest NVIDIA driver branch that runs it (CUDA Toolkit release notes, table of
# minimum driver versions for minor version compatibility).
DRIVER_MINIMUM = {12: 525, 13: 580}

# The parts of a CUDA toolkit that compiling and launching a kernel may load, as wheels: with a
# suffix -cu12 or -cu13, or without one, and then their version is the toolkit's. nvdisasm is left
# out, a program of its own that may stand beside any toolkit.
TOOLKIT_WHEELS = (
    "cuda-toolkit",
    "nvidia-cuda-cccl",
    "nvidia-cuda-crt",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-nvjitlink",
    "nvidia-nvvm",
)


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis: how bad, what it is about, what was found, what to type."""

    level: Level
    subject: str
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Family:
    """A kernel family, whether it runs here, and why it does or does not."""

    name: str
    works: bool
    reason: str


@dataclass(frozen=True)
class Report:
    """Facts, findings and families; the first family is the reference."""

    facts: Facts
    findings: tuple[Finding, ...]
    families: tuple[Family, ...]

    @property
    def exit_code(self) -> int:
        """0 when the reference works, 1 when it does not."""
        return 0 if self.families[0].works else 1


def diagnose(facts: Facts) -> Report:
    """Findings and working families that follow from the facts."""
    findings = (
        *_diagnose_python(facts),
        *_diagnose_base(facts),
        *_diagnose_driver(facts),
        *_diagnose_mixed_wheels(facts),
        *_diagnose_wheels_and_driver(facts),
    )
    return Report(facts, findings, _families(facts))


# ----------------------------------------------------------------------------------- versions


def version_tuple(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: ``"13.5.37rc1"`` gives (13, 5, 37)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def within(version: str, bounds: str) -> bool:
    """Whether a version keeps the bounds: ``>=`` and ``<``, joined by a comma."""
    number = version_tuple(version)
    for bound in filter(None, bounds.split(",")):
        limit = version_tuple(bound.lstrip("<>="))
        kept = number >= limit if bound.startswith(">=") else number < limit
        if not kept:
            return False
    return True


def cuda_wheels(packages: Mapping[str, str]) -> dict[int, list[str]]:
    """Installed wheels that belong to one CUDA major version, by that version.

    cuda-bindings counts only beside another wheel: the base install brings the newest one.
    """
    found: dict[int, list[str]] = {}
    for name, version in sorted(packages.items()):
        cupy = re.fullmatch(r"cupy-cuda(\d+)x", name)
        suffixed = re.fullmatch(r"(.+)-cu(\d+)", name)
        if cupy:
            major = int(cupy[1])
        elif suffixed and suffixed[1] in TOOLKIT_WHEELS:
            major = int(suffixed[2])
        elif name in TOOLKIT_WHEELS and version_tuple(version):
            major = version_tuple(version)[0]
        else:
            continue
        found.setdefault(major, []).append(name)
    bindings = version_tuple(packages.get("cuda-bindings", ""))
    if found and bindings:
        found.setdefault(bindings[0], []).append("cuda-bindings")
    return dict(sorted(found.items()))


def supported_major(facts: Facts) -> int | None:
    """Newest CUDA major version of ours that the driver runs; None if it runs none."""
    if facts.driver_cuda is not None:
        newest = facts.driver_cuda[0]
        return max((major for major in DRIVER_MINIMUM if major <= newest), default=None)
    if facts.driver is not None:
        branch = version_tuple(facts.driver)[0]
        return max(
            (major for major, least in DRIVER_MINIMUM.items() if branch >= least), default=None
        )
    return None


# ----------------------------------------------------------------------------------- findings


def _diagnose_python(facts: Facts) -> list[Finding]:
    if version_tuple(facts.python)[:2] >= PYTHON_MINIMUM:
        return [Finding("ok", "Python", f"{facts.python} on {facts.system}")]
    least = ".".join(map(str, PYTHON_MINIMUM))
    text = f"{facts.python} is too old, fa_numba needs {least} or newer"
    return [Finding("error", "Python", text, f"make a new environment with Python {least}")]


def _diagnose_base(facts: Facts) -> list[Finding]:
    findings = [_diagnose_package(facts, name) for name in BASE_MODULES]
    if facts.numba_cuda_active is False and "numba-cuda" in facts.packages:
        text = "numba.cuda is Numba's old CUDA target, numba-cuda has not taken its place"
        fix = "pip install --force-reinstall --no-deps numba-cuda"
        findings.append(Finding("warning", "numba.cuda", text, fix))
    if facts.reference_problem is not None:
        findings.append(Finding("error", "reference", facts.reference_problem))
    return findings


def _diagnose_package(facts: Facts, name: str) -> Finding:
    version = facts.packages.get(name)
    bounds = facts.requirements.get(name, "")
    fix = f"pip install --upgrade '{name}{bounds}'"
    if name in facts.import_errors:
        level: Level = "error" if name in REFERENCE_NEEDS else "warning"
        what = "does not import" if version else "is not installed"
        return Finding(level, name, f"{what} ({facts.import_errors[name]})", fix)
    if version and not within(version, bounds):
        return Finding("warning", name, f"{version} is not {bounds}", fix)
    return Finding("ok", name, version or "imports, version unknown")


def _diagnose_driver(facts: Facts) -> list[Finding]:
    if facts.driver is None and facts.driver_cuda is None and facts.driver_problem is None:
        return [Finding("note", "driver", "no NVIDIA driver: NumPy arrays work, GPU arrays do not")]
    version = facts.driver or "of unknown version"
    if facts.driver_cuda is not None:
        version += f", CUDA {facts.driver_cuda[0]}.{facts.driver_cuda[1]}"
    if facts.driver_problem is not None:
        fix = "after a driver update restart; in a container pass the GPU through"
        return [Finding("warning", "driver", f"{version}; {facts.driver_problem}", fix)]
    if supported_major(facts) is None:
        major, oldest = min(DRIVER_MINIMUM.items())
        text = f"{version} is older than {oldest}, the first that runs CUDA {major}"
        return [
            Finding("warning", "driver", text, f"update the NVIDIA driver to {oldest} or newer")
        ]
    findings = [Finding("ok", "driver", version)]
    findings += [Finding("ok", "GPU", f"{g.name}, sm_{g.sm}") for g in facts.gpus]
    if not facts.gpus:
        findings.append(Finding("warning", "GPU", "the driver shows none"))
    return findings


def _diagnose_mixed_wheels(facts: Facts) -> list[Finding]:
    wheels = cuda_wheels(facts.packages)
    if len(wheels) < 2:
        return []
    keep = supported_major(facts)
    if keep not in wheels:
        keep = min(wheels)
    listed = "; ".join(f"CUDA {major}: {', '.join(names)}" for major, names in wheels.items())
    text = f"more than one CUDA major version, which one gets loaded is luck ({listed})"
    if "torch" in facts.packages:
        fix = f"PyTorch owns some of them: pip install 'fa_numba[cu{keep}]' in a new environment"
        return [Finding("warning", "CUDA wheels", text, fix)]
    # The bindings are replaced by the extra's own. Two CuPy wheels write into the same folder, so
    # that removing one leaves holes in the other: hence the reinstallation.
    foreign = [
        name
        for major, names in wheels.items()
        for name in names
        if major != keep and name != "cuda-bindings"
    ]
    steps = [f"pip uninstall -y {' '.join(foreign)}"] if foreign else []
    steps.append(f"pip install --force-reinstall 'fa_numba[cu{keep}]'")
    return [Finding("warning", "CUDA wheels", text, " && ".join(steps))]


def _diagnose_wheels_and_driver(facts: Facts) -> list[Finding]:
    wheels = cuda_wheels(facts.packages)
    supported = supported_major(facts)
    if supported is None:
        return []
    if not wheels:
        text = f"none installed; the driver runs CUDA {supported}"
        return [Finding("note", "CUDA wheels", text, f"pip install 'fa_numba[cu{supported}]'")]
    newest = max(wheels)
    if newest <= supported:
        return [Finding("ok", "CUDA wheels", f"the driver runs CUDA {newest}, the newest here")]
    text = (
        f"{', '.join(wheels[newest])} of CUDA {newest}, but the driver runs CUDA {supported} only: "
        "kernels fail with CUDA_ERROR_UNSUPPORTED_PTX_VERSION or the like"
    )
    fix = f"pip install 'fa_numba[cu{supported}]' in a new environment"
    if newest in DRIVER_MINIMUM:
        fix += f", or update the NVIDIA driver to {DRIVER_MINIMUM[newest]} or newer"
    return [Finding("warning", "CUDA wheels", text, fix)]


# ----------------------------------------------------------------------------------- families


def _families(facts: Facts) -> tuple[Family, ...]:
    missing = [name for name in REFERENCE_NEEDS if name in facts.import_errors]
    problem = f"needs {' and '.join(missing)}" if missing else facts.reference_problem
    later = "not in this version: its kernels are still to come"
    return (
        Family("reference", problem is None, problem or "NumPy arrays on the CPU"),
        *(Family(name, False, later) for name in ("simt", "sm80", "sm90")),
    )
