"""Command line: ``python -m fa_numba demo | doctor | explain | glossary``.

A dispatcher only: each command imports what it needs when it runs, so that ``--help`` is quick and
``doctor`` runs where other imports fail.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["find_terms", "main", "parse_shape"]

# The demo and the glossary are files of the repository, which an installed package does not have.
ROOT = Path(__file__).resolve().parent.parent

EXPLAIN_EPILOG = """\
shapes are (batch, seqlen, nheads, headdim), written 2x4096x16x64 or 2,4096,16,64

examples:
  python -m fa_numba explain 2x4096x16x64 --causal
  python -m fa_numba explain 1x1x32x128 1x8192x8x128 --dtype float16 --num-splits 0
"""


def parse_shape(text: str) -> tuple[int, ...]:
    """Shape from ``2x4096x16x64`` or ``"2,4096,16,64"``; brackets and spaces are allowed."""
    numbers = re.split(r"\s*[x,×]\s*|\s+", text.strip().strip("()[]").strip(" ,"))
    if not all(re.fullmatch(r"\d+", number) for number in numbers):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a shape: write the sizes as 2x4096x16x64 or 2,4096,16,64"
        )
    return tuple(int(number) for number in numbers)


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of all commands; each sets ``run``, a function of the parsed arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m fa_numba", description="FlashAttention told in Python."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="search sentences with a real model", add_help=False, prefix_chars="\0"
    )
    demo.add_argument("arguments", nargs="*", help="passed on to examples/sentence_search.py")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser(
        "doctor", help="what is installed, what works with it, what to install"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)

    explain = commands.add_parser(
        "explain",
        help="how a call would run: family, tiles, work, memory",
        epilog=EXPLAIN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explain.add_argument("q_shape", type=parse_shape, metavar="Q_SHAPE")
    explain.add_argument(
        "k_shape", type=parse_shape, metavar="K_SHAPE", nargs="?", help="default: as Q_SHAPE"
    )
    explain.add_argument("--dtype", default="float32", help="default: float32")
    explain.add_argument("--causal", action="store_true")
    explain.add_argument(
        "--window", type=int, nargs=2, default=(-1, -1), metavar=("LEFT", "RIGHT"), help="-1: open"
    )
    explain.add_argument("--sink", type=int, default=0, metavar="N", help="sink tokens")
    explain.add_argument("--softcap", type=float, default=0.0, metavar="C", help="0: none")
    explain.add_argument("--num-splits", type=int, default=1, metavar="N", help="0: automatic")
    explain.add_argument("--device", help="default: this machine's")
    explain.set_defaults(run=_explain)

    glossary = commands.add_parser("glossary", help="what a term means, in English and Chinese")
    glossary.add_argument("term", metavar="TERM", nargs="+", help="a term or a part of one")
    glossary.set_defaults(run=_glossary)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        exit_code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` has seen enough
        # The interpreter flushes once more when it ends; let that go nowhere instead of failing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return exit_code


def _not_in_package(what: str) -> int:
    print(
        f"{what} is part of the repository, not of the installed package: run this in a clone.",
        file=sys.stderr,
    )
    return 1


def _demo(arguments: argparse.Namespace) -> int:
    script = ROOT / "examples" / "sentence_search.py"
    if not script.is_file():
        return _not_in_package("The demo")
    return subprocess.run([sys.executable, script, *arguments.arguments], check=False).returncode


def _doctor(arguments: argparse.Namespace) -> int:
    from fa_numba import doctor

    return doctor.main(as_json=arguments.json)


def _explain(arguments: argparse.Namespace) -> int:
    import fa_numba

    try:
        report = fa_numba.explain(
            arguments.q_shape,
            arguments.k_shape or arguments.q_shape,
            arguments.dtype,
            causal=arguments.causal,
            window_size=tuple(arguments.window),
            sink_token_length=arguments.sink,
            softcap=arguments.softcap,
            num_splits=arguments.num_splits,
            device=arguments.device,
        )
    except (TypeError, ValueError) as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0


def find_terms(terms: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Rows of the glossary that go by this name, or, when none does, whose names contain it."""

    def names(row: dict[str, Any]) -> list[str]:
        return [name.casefold() for name in (row["id"], row["en"], row["zh"], *row["aliases"])]

    wanted = text.casefold()
    exact = [row for row in terms if wanted in names(row)]
    return exact or [row for row in terms if any(wanted in name for name in names(row))]


def _glossary(arguments: argparse.Namespace) -> int:
    path = ROOT / "docs" / "glossary.toml"
    if not path.is_file():
        return _not_in_package("The glossary")
    text = " ".join(arguments.term)
    rows = find_terms(tomllib.loads(path.read_text(encoding="utf-8"))["term"], text)
    for row in rows:
        print(f"{row['en']} / {row['zh']}  ({row['since']}, {row['status']})")
        print(f"  {row['en_sentence']}\n  {row['zh_sentence']}")
        for place in (*row["code"], row["notebook"]):
            if place:
                print(f"  -> {place}")
    if not rows:
        print(f"glossary: no term {text!r}", file=sys.stderr)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
