"""Run a public function for a family, and again on poisoned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.poison import FILLS, poison, poisoned_allocations


def on_family(family: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with its backend chosen."""
    return lambda *args, **kwargs: function(*args, backend=family, **kwargs)


def assert_bit_equal(got: Any, want: Any) -> None:
    """Assert that two arrays, or tuples of arrays, hold the same bytes."""
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for x, y in zip(got, want, strict=True):
            assert_bit_equal(x, y)
        return
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(fingerprint(got), fingerprint(want))


def fingerprint(x: np.ndarray) -> np.ndarray:
    """Return the bytes of an array in logical order."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def run_thrice(call: Callable[..., Any], *, give_out: bool = True) -> tuple[np.ndarray, ...]:
    """Run a call plainly, then twice on poisoned memory; all three must be bit-equal.

    Parameters
    ----------
    call : callable
        Takes ``out=`` (if `give_out`) and returns a tuple of arrays.
    give_out : bool
        Give the poisoned runs a poisoned array to write their first result into.

    Returns
    -------
    tuple of array
        What the plain run returned.
    """
    plain = call()
    for byte in FILLS:
        out = poison(np.empty_like(plain[0]), byte) if give_out else None
        with poisoned_allocations(byte):
            again = call(out=out) if give_out else call()
        assert_bit_equal(again, plain)
        if give_out:
            assert again[0] is out
    return plain
