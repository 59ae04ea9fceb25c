"""Every exercise accepts its solution and refuses its mutants with a message that helps."""

import numpy as np
import pytest

from fa_numba.exercises import check, exercises, judge, solution
from fa_numba.exercises.checker import WrongAnswerError, require_close
from fa_numba.exercises.online_softmax import TileReader
from fa_numba.exercises.online_softmax_solutions import lse, merge, online_update, tiled_row
from fa_numba.reference.attention import attention

ALL = list(exercises().values())
MUTANTS = [
    pytest.param(exercise, mutant, id=f"{exercise.name}-{mutant.mistake}")
    for exercise in ALL
    for mutant in exercise.mutants
]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_the_solution_is_accepted(exercise):
    verdict = judge(exercise.name, exercise.solution)
    assert verdict == (True, f"✓ {exercise.name}: right. {exercise.praise}")


@pytest.mark.parametrize(("exercise", "mutant"), MUTANTS)
def test_a_mutant_is_refused_and_told_why(exercise, mutant):
    passed, message = judge(exercise.name, mutant.answer)
    assert not passed
    assert message.startswith(f"✗ {exercise.name}: ")
    assert mutant.told in message


def unwritten(*_):
    raise NotImplementedError


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
@pytest.mark.parametrize("skeleton", [unwritten, lambda *_: NotImplemented])
def test_a_skeleton_is_not_yet(exercise, skeleton):
    passed, message = judge(exercise.name, skeleton)
    assert not passed
    assert message.startswith(f"… {exercise.name}: not yet.")


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda *_: None, "returned None"),
        (lambda *_: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: 1, "TypeError"),
    ],
)
def test_accidents_become_verdicts(exercise, answer, told):
    passed, message = judge(exercise.name, answer)
    assert not passed
    assert told in message


def test_check_prints_the_verdict_and_shows_nothing_else_in_a_notebook(capsys):
    exercise = ALL[0]
    assert check(exercise.name, exercise.solution) is None
    assert capsys.readouterr().out == f"✓ {exercise.name}: right. {exercise.praise}\n"


def test_a_result_that_is_no_number_or_no_pair_is_named():
    assert "not a number" in judge("02_lse", lambda scores: "many").message
    pair = judge("02_merge", lambda *parts: parts[0])
    assert "return the pair (out, lse); got ndarray" in pair.message


def test_an_answer_may_return_a_list():
    def as_list(scores):
        return list(exercises()["02_lse"].solution(scores))

    assert judge("02_lse", as_list).passed


def test_answers_get_copies_so_scribbling_on_the_input_is_allowed():
    def scribbling(row_max, row_sum, scores):
        result = exercises()["02_online_update"].solution(row_max, row_sum, scores)
        scores[:] = np.nan
        return result

    assert judge("02_online_update", scribbling).passed


def test_an_unknown_exercise_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no exercise '02_marge'; there are: 01_hbm.*02_merge"):
        judge("02_marge", unwritten)


def test_the_solution_can_be_read():
    assert solution("02_online_update").startswith("def online_update(")


@pytest.mark.parametrize(
    ("got", "want", "told"),
    [
        (np.zeros(3), np.zeros(4), r"shape \(3,\), it should have \(4,\)"),
        (np.array([1.0, np.nan]), np.ones(2), "NaN"),
        (np.array([1.0, 2.0]), np.ones(2), r"2 at index \(1,\), it should be 1"),
        (np.array([-np.inf]), np.array([np.inf]), "-inf at index"),
        (0.0, -np.inf, "is 0, it should be -inf"),
    ],
)
def test_require_close_says_what_differs(got, want, told):
    with pytest.raises(WrongAnswerError, match=told):
        require_close(got, want, what="it", hint="look here")


def test_a_tile_reader_refuses_everything_but_row_slices():
    reader = TileReader(np.arange(6.0).reshape(6, 1), 2, "k")
    assert reader.shape == (6, 1)
    assert reader[4:6].tolist() == [[4.0], [5.0]]
    for rows in (0, slice(0, 2, 2), (slice(0, 1), 0)):
        with pytest.raises(WrongAnswerError, match="row slices"):
            reader[rows]


def test_the_solutions_of_the_softmax_chapter_are_dense_attention():
    """The checkers measure answers against the solutions; these are measured against the oracle."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(1, 1, 1, 8))
    k, v = rng.normal(size=(1, 23, 1, 8)), rng.normal(size=(1, 23, 1, 5))
    out, dense_lse = attention(q, k, v)
    scores = (k[0, :, 0] @ q[0, 0, 0] / np.sqrt(8))[None]
    np.testing.assert_allclose(lse(scores), dense_lse[0, 0], rtol=1e-13)
    np.testing.assert_allclose(
        tiled_row(q[0, 0, 0], k[0, :, 0], v[0, :, 0], 4), out[0, 0, 0], rtol=1e-12
    )
    row_max, row_sum = -np.inf, 0.0
    for start in range(0, 23, 5):
        row_max, row_sum = online_update(row_max, row_sum, scores[0, start : start + 5])
    np.testing.assert_allclose(row_max + np.log(row_sum), dense_lse[0, 0, 0], rtol=1e-13)
    parts = [attention(q, k[:, rows], v[:, rows]) for rows in (slice(0, 9), slice(9, 23))]
    flat = [array[0, 0] for part in parts for array in part]
    merged_out, merged_lse = merge(*flat)
    np.testing.assert_allclose(merged_out[0], out[0, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(merged_lse, dense_lse[0, 0], rtol=1e-13)


def test_solutions_of_empty_rows_are_zero_and_minus_infinity():
    empty = np.full(2, -np.inf)
    with np.errstate(divide="ignore"):
        out, merged = merge(np.full((2, 3), np.nan), empty, np.zeros((2, 3)), empty)
        assert (lse(np.full((2, 3), -np.inf)) == empty).all()
    assert (out == 0).all()
    assert (merged == empty).all()
    assert online_update(-np.inf, 0.0, np.full(3, -np.inf)) == (-np.inf, 0.0)
