"""Mutation testing of the row softmax: does the emulator, or the oracle, notice a broken kernel?

``python tests/mutants/run_row_softmax.py`` changes the kernel and its stages in one place after
another: a statement is deleted, an integer raised by one, ``<`` becomes ``<=`` and ``==`` becomes
``!=``, ``+`` becomes ``-``, and each the other way round. Every mutant runs a few small matrices in
the emulator until something is found: a hazard, a deadlock, an exception, wrong numbers, a bank
conflict. Mutants of which nothing is found have *survived*. Those that compute the same are listed,
with the reason, in ``row_softmax_survivors.toml``. The command fails if fewer than 85 % are killed
or a survivor is not listed there; ``--write`` puts the result into ``row_softmax.md``.
"""

import argparse
import ast
import multiprocessing
import os
import signal
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# A script's own folder is on the path, the package `tests` is not.
sys.path.insert(0, str(ROOT))

from tests.mutants.row_softmax_case import Case, changed_run, judge, source  # noqa: E402

MINIMUM_SCORE = 0.85
SECONDS = 30

# What is mutated: everything that a kernel of any configuration is made of.
FUNCTIONS = {
    "tile_io": (
        "_make_offset",
        "_make_global_io",
        "_make_chunk_io",
        "_make_fragment_io",
        "_read_twice",
        "_write_twice",
    ),
    "softmax": ("init_rows", "update", "row_shift", "finalize"),
    "row_softmax": ("RowSoftmaxConfig", "make_row_softmax"),
}

# Small, and each with something that the others lack; first those that find the most.
SUITE = (
    (Case("bfloat16", 37, 75, tile_m=32), {"schedule": "random", "seed": 1}),
    (Case("float32", 19, 70, "aligned"), {}),
    (Case("float16", 16, 64, "aligned", banks=True), {}),
    (Case("bfloat16", 5, 1), {}),
    (Case("bfloat16", 9, 64, "reversed"), {}),
    (Case("bfloat16", 21, 141, "aligned"), {"schedule": "random", "seed": 2}),
    (Case("float32", 17, 67, "shifted", tile_m=32), {}),
    (Case("float16", 16, 129, "shifted", tile_n=128), {}),
    (Case("float32", 16, 128, "aligned", tile_n=128, banks=True), {}),
    (Case("float32", 3, 0), {}),
    (Case("bfloat16", 5, 63), {}),
    # Rows that end after each element of a chunk.
    *[
        (Case(dtype, 2, cols, kind), {})
        for dtype, chunk in (("float32", 4), ("float16", 8))
        for kind in ("shifted", "aligned")
        for cols in range(1, chunk + 1)
    ],
)

SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


@dataclass(frozen=True)
class Mutant:
    """One change: where, what was there, what is there now."""

    module: str
    function: str
    kind: str
    code: str
    mutant: str
    text: str

    @property
    def key(self):
        """What the list of survivors calls it."""
        return (f"{self.module}.{self.function}", self.code, self.mutant)


def header(statement):
    """Return a statement as text, without its body."""
    return ast.unparse(statement).splitlines()[0]


def is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def statements_of(node, function):
    """Yield (function, statement, list that holds it) of all statements inside a node."""
    for field in ("body", "orelse"):
        holder = getattr(node, field, [])
        for statement in holder if isinstance(holder, list) else ():
            inner = isinstance(statement, ast.FunctionDef | ast.ClassDef)
            if (
                not inner
                and not is_docstring(statement)
                and not isinstance(statement, ast.AnnAssign)
            ):
                yield function, statement, holder
            yield from statements_of(statement, statement.name if inner else function)


def expressions_of(statement):
    """Yield the parts of a statement's own expressions, without annotations."""
    for _, value in ast.iter_fields(statement):
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.expr):
                yield from ast.walk(node)


def changes_of(statement, holder):
    """Yield (kind, apply, undo) for every mutant of a statement."""
    index = holder.index(statement)

    def replace(new):
        holder[index] = new

    nothing = ast.copy_location(ast.Pass(), statement)
    yield "deleted", lambda: replace(nothing), lambda: replace(statement)
    for node in expressions_of(statement):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield from change(node, "value", node.value, node.value + 1, "integer + 1")
        elif isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                if type(op) in SWAPS:
                    swapped = [*node.ops[:i], SWAPS[type(op)](), *node.ops[i + 1 :]]
                    yield from change(node, "ops", node.ops, swapped, "comparison")
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield from change(node, "op", node.op, SWAPS[type(node.op)](), "+ and -")


def change(node, field, old, new, kind):
    yield kind, lambda: setattr(node, field, new), lambda: setattr(node, field, old)


def mutants():
    """Return all mutants."""
    found = []
    for module, names in FUNCTIONS.items():
        tree = ast.parse(source(module))
        for definition in tree.body:
            if getattr(definition, "name", None) not in names:
                continue
            for function, statement, holder in list(statements_of(definition, definition.name)):
                before = header(statement)
                for kind, apply, undo in changes_of(statement, holder):
                    apply()
                    after = "" if kind == "deleted" else header(statement)
                    text = ast.unparse(tree)
                    undo()
                    found.append(Mutant(module, function, kind, before, after, text))
    return found


def on_alarm(*_):
    raise TimeoutError


def verdict_of(mutant):
    """Return how a mutant was found out; "" if it survived."""
    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(SECONDS)
    try:
        run = changed_run({mutant.module: mutant.text})
        for case, options in SUITE:
            verdict = judge(run, case, **options)
            if verdict.kinds:
                trivial = any(name in verdict.error for name in ("NameError", "UnboundLocalError"))
                return "a name is missing" if trivial else sorted(verdict.kinds)[0]
    except TimeoutError:
        return "time limit"
    except Exception as error:
        trivial = isinstance(error, NameError)
        return "a name is missing" if trivial else "error"
    finally:
        signal.alarm(0)
    return ""


def load_reasons():
    """Return the reasons of the survivors' list by key."""
    text = (HERE / "row_softmax_survivors.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text).get("survivor", [])
    return {(row["function"], row["code"], row["mutant"]): row["why"] for row in rows}


def report(results, reasons):
    """Return the text of `row_softmax.md`."""
    survivors = [m for m, verdict in results if not verdict]
    killed = len(results) - len(survivors)
    trivial = sum(verdict == "a name is missing" for _, verdict in results)
    score = killed / len(results)
    nontrivial = (killed - trivial) / (len(results) - trivial)
    lines = [
        "# Mutants of the row softmax",
        "",
        "Written by `python tests/mutants/run_row_softmax.py --write`; see there for what this is.",
        "",
        f"- mutants: {len(results)}, of the kernel and of its stages",
        f"- killed: {killed} (of these, {trivial} because a name is missing)",
        f"- survived: {len(survivors)}",
        f"- score: {100 * score:.1f} % (at least {100 * MINIMUM_SCORE:.0f} %)",
        f"- score without the missing names: {100 * nontrivial:.1f} %",
        "",
        "| what was changed | mutants | killed |",
        "| --- | ---: | ---: |",
    ]
    for kind in sorted({m.kind for m, _ in results}):
        verdicts = [verdict for m, verdict in results if m.kind == kind]
        lines.append(f"| {kind} | {len(verdicts)} | {sum(map(bool, verdicts))} |")
    lines += ["", "| found by | mutants |", "| --- | ---: |"]
    counts = Counter(verdict for _, verdict in results if verdict)
    lines += [f"| {verdict} | {n} |" for verdict, n in counts.most_common()]
    lines += ["", "## Survivors", ""]
    for function, code, mutant in dict.fromkeys(m.key for m in survivors):
        why = reasons.get((function, code, mutant), "NOT EXPLAINED")
        change = f"`{code}` → `{mutant}`" if mutant else f"`{code}` deleted"
        lines += [f"- `{function}`: {change}.", f"  {why}"]
    return "\n".join(lines) + "\n"


def run(processes, write):
    """Run all mutants; return the exit status."""
    start = time.perf_counter()
    todo = mutants()
    unchanged = [judge(changed_run({}), case, **options) for case, options in SUITE]
    assert not any(v.kinds for v in unchanged), [str(v) for v in unchanged]
    clean = time.perf_counter() - start
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        results = list(zip(todo, pool.imap(verdict_of, todo, chunksize=4), strict=True))
    reasons = load_reasons()
    text = report(results, reasons)
    print(text)
    print(f"{time.perf_counter() - start:.0f} s, of which the clean suite {clean:.1f} s")
    if write:
        (HERE / "row_softmax.md").write_text(text, encoding="utf-8")
    survivors = {m.key for m, verdict in results if not verdict}
    stale = set(reasons) - survivors
    if stale:
        print("listed, but killed or gone:", *sorted(stale), sep="\n  ")
    score = sum(bool(verdict) for _, verdict in results) / len(results)
    return 0 if score >= MINIMUM_SCORE and survivors == set(reasons) else 1


def main():
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true", help="write the result to row_softmax.md")
    arguments = parser.parse_args()
    return run(arguments.processes, arguments.write)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
