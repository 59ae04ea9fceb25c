"""The machinery of the exercises: what an exercise is, and how an answer is judged."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Exercise",
    "Mutant",
    "Verdict",
    "WrongAnswerError",
    "check",
    "exercises",
    "judge",
    "require_close",
    "solution",
]

CHAPTERS = ("attention_cost", "online_softmax")

Answer = Callable[..., Any]


class WrongAnswerError(Exception):
    """An answer is wrong; the message says where, and where to look."""


@dataclass(frozen=True)
class Mutant:
    """A wrong answer that the checker must refuse.

    Attributes
    ----------
    mistake : str
        What it does wrong, in a few words.
    answer : callable
        The wrong function.
    told : str
        A piece of the message that the learner must get for this mistake.
    """

    mistake: str
    answer: Answer
    told: str


@dataclass(frozen=True)
class Exercise:
    """One exercise of a notebook.

    Attributes
    ----------
    name : str
        Notebook number and subject, for example "02_merge".
    verify : callable
        Called with the learner's function; raises `WrongAnswerError` if an answer is wrong.
    solution : callable
        A right answer.
    mutants : tuple of Mutant
        WrongAnswerError answers, each with one mistake.
    praise : str
        What the learner has just built, said when the answer is right.
    """

    name: str
    verify: Callable[[Answer], None]
    solution: Answer
    mutants: tuple[Mutant, ...]
    praise: str


@cache
def exercises() -> dict[str, Exercise]:
    """Return every exercise by name, in the order of the notebooks."""
    chapters = (import_module(f"fa_numba.exercises.{chapter}") for chapter in CHAPTERS)
    return {exercise.name: exercise for chapter in chapters for exercise in chapter.EXERCISES}


class Verdict(NamedTuple):
    """What `judge` says of an answer.

    Attributes
    ----------
    passed : bool
        True if the answer is right.
    message : str
        One line for the learner.
    """

    passed: bool
    message: str


def check(name: str, answer: Answer) -> None:
    """Print the verdict on the answer to an exercise.

    A wrong or unfinished answer is not an error: the notebook goes on.

    Parameters
    ----------
    name : str
        Name of the exercise.
    answer : callable
        The learner's function. A skeleton that raises NotImplementedError, or returns
        NotImplemented, is "not yet".

    Raises
    ------
    ValueError
        If there is no exercise of that name.
    """
    print(judge(name, answer).message)


def judge(name: str, answer: Answer) -> Verdict:
    """Return the verdict on the answer to an exercise; arguments as for `check`."""
    exercise = _find(name)
    try:
        with np.errstate(all="ignore"):
            exercise.verify(_Attempt(answer))
    except NotImplementedError:
        open_task = "Replace the NotImplementedError by your lines and run again."
        return Verdict(False, f"… {name}: not yet. {open_task}")
    except WrongAnswerError as wrong:
        return Verdict(False, f"✗ {name}: {wrong}")
    return Verdict(True, f"✓ {name}: right. {exercise.praise}")


def solution(name: str) -> str:
    """Return the source text of the solution of an exercise, for ``print(solution(name))``."""
    return inspect.getsource(_find(name).solution)


def _find(name: str) -> Exercise:
    if name not in exercises():
        raise ValueError(f"no exercise {name!r}; there are: {', '.join(exercises())}")
    return exercises()[name]


class _Attempt:
    """The learner's function with its accidents turned into verdicts."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def __call__(self, *args: Any) -> Any:
        try:
            result = self.answer(*args)
        except (NotImplementedError, WrongAnswerError):
            raise
        except Exception as error:
            raise WrongAnswerError(
                f"your function raised {type(error).__name__}: {error}"
            ) from error
        if result is NotImplemented:
            raise NotImplementedError
        if result is None:
            raise WrongAnswerError("your function returned None. Is there a return statement?")
        return result


def require_close(
    got: Any, want: Any, *, what: str, hint: str, rtol: float = 1e-9, atol: float = 1e-12
) -> None:
    """Raise `WrongAnswerError` unless `got` has the shape and the values of `want`.

    Infinite values are compared first and exactly, so that a NaN or a wrong -inf is named as what
    it is.

    Parameters
    ----------
    got, want : array_like
        The learner's result and the right one.
    what : str
        What is compared, for the message: "the new row_sum".
    hint : str
        Where to look if it is wrong.
    rtol, atol : float
        Tolerances, relative to `want` and absolute.
    """
    want = np.asarray(want, dtype=np.float64)
    try:
        array = np.asarray(got, dtype=np.float64)
    except (TypeError, ValueError):
        raise WrongAnswerError(f"{what} is not a number or an array of numbers: {got!r}") from None
    if array.shape != want.shape:
        raise WrongAnswerError(
            f"{what} has shape {array.shape}, it should have {want.shape}. {hint}"
        )
    if np.isnan(array).any():
        raise WrongAnswerError(f"{what} contains NaN. {hint}")
    infinite = np.isinf(want) | np.isinf(array)
    bad = np.where(infinite, array != want, False)
    finite = ~infinite
    bad[finite] = np.abs(array[finite] - want[finite]) > atol + rtol * np.abs(want[finite])
    if bad.any():
        where = np.argwhere(bad)[0]
        index = f" at index {tuple(int(i) for i in where)}" if where.size else ""
        first = tuple(where)
        raise WrongAnswerError(
            f"{what} is {array[first]:.8g}{index}, it should be {want[first]:.8g}. {hint}"
        )


def require_pair(result: Any, *, names: str) -> tuple[Any, Any]:
    """Return `result` as a pair, or raise `WrongAnswerError` if it is not one."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise WrongAnswerError(f"return the pair {names}; got {type(result).__name__}")
    return result[0], result[1]
