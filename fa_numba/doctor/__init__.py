"""What is installed, what works with it, and what to install: ``python -m fa_numba doctor``.

Three steps, so that each can be tested alone: :func:`collect` looks at the machine and never
raises, :func:`diagnose` turns those facts into findings and looks at nothing else,
:func:`format_report` and :func:`to_json` print. All of it needs the standard library only: it must
run where the rest is broken.
"""

from fa_numba.doctor.facts import Facts, Gpu, collect
from fa_numba.doctor.findings import Family, Finding, Report, diagnose
from fa_numba.doctor.report import format_report, main, to_json

__all__ = [
    "Facts",
    "Family",
    "Finding",
    "Gpu",
    "Report",
    "collect",
    "diagnose",
    "format_report",
    "main",
    "to_json",
]
