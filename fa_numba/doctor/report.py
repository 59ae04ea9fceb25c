"""The doctor's report as text for a terminal and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from fa_numba.doctor.facts import BASE_MODULES, collect
from fa_numba.doctor.findings import Report, cuda_wheels, diagnose

__all__ = ["format_report", "main", "to_json"]

SHOWN_PACKAGES = (
    "fa-numba",
    *BASE_MODULES,
    "llvmlite",
    "cuda-bindings",
    "cuda-pathfinder",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "greenlet",
    "threadpoolctl",
)


def format_report(report: Report) -> str:
    """Give the report as text: packages, checks with what to type, families."""
    packages = report.facts.packages
    lines = ["packages"]
    lines += [f"  {name:<18}{packages[name]}" for name in SHOWN_PACKAGES if name in packages]
    lines += ["", "checks"]
    for finding in report.findings:
        lines.append(f"  {finding.level:<9}{finding.subject}: {finding.text}")
        if finding.fix:
            lines.append(f"{'':11}-> {finding.fix}")
    lines += ["", "what works"]
    for family in report.families:
        lines.append(f"  {'yes' if family.works else 'no':<5}{family.name:<11}{family.reason}")
    return "\n".join(lines)


def to_json(report: Report) -> str:
    """Give the whole report as JSON, with the CUDA wheels by major version and the exit code."""
    wheels = {str(major): names for major, names in cuda_wheels(report.facts.packages).items()}
    data = asdict(report) | {"cuda_wheels": wheels, "exit_code": report.exit_code}
    return json.dumps(data, indent=2, sort_keys=True)


def main(*, as_json: bool = False) -> int:
    """Print the report on this machine.

    Parameters
    ----------
    as_json : bool
        Print JSON instead of text.

    Returns
    -------
    int
        Exit code: 0 when the reference works.
    """
    report = diagnose(collect())
    print(to_json(report) if as_json else format_report(report))
    return report.exit_code
