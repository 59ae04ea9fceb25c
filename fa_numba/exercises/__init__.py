"""Checkers for the exercises of the notebooks.

In a notebook: ``from fa_numba.exercises import check``, then ``check("02_merge", my_function)``.
Each exercise also has a solution (`solution`) and mutants: wrong answers, each with the mistake it
makes, that the checker must refuse. The tests run them all.
"""

from fa_numba.exercises.checker import (
    Exercise,
    Mutant,
    Verdict,
    WrongAnswerError,
    check,
    exercises,
    judge,
    solution,
)

__all__ = [
    "Exercise",
    "Mutant",
    "Verdict",
    "WrongAnswerError",
    "check",
    "exercises",
    "judge",
    "solution",
]
