"""Workers do every task once, BLAS is held meanwhile and let go afterwards, whatever happens."""

import contextlib
import sys
import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fa_numba.reference import workers as workers_module
from fa_numba.reference.workers import run_workers

pytestmark = pytest.mark.skipif(
    workers_module._blas_controller() is None, reason="threadpoolctl cannot hold this BLAS"
)


def blas_threads():
    return max(x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas")


@pytest.fixture(autouse=True)
def two_blas_threads():
    """The suite runs with one BLAS thread, which would mean one worker."""
    with threadpool_limits(2, user_api="blas"):
        yield


def collect(seen, what):
    """Return a worker that notes `what` once, and in which thread it ran."""
    return lambda tasks: seen.append((threading.get_ident(), what()))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_task_is_done_once(num_threads):
    done, lock = [], threading.Lock()

    def work(tasks):
        for task in tasks:
            with lock:
                done.append(task)

    with threadpool_limits(num_threads, user_api="blas"):
        run_workers(work, (n for n in range(200)))
    assert sorted(done) == list(range(200))


def test_a_generator_of_tasks_runs_in_the_callers_thread():
    """Two workers must not wake it at once."""
    seen = []

    def tasks():
        for task in range(3):
            seen.append(threading.get_ident())
            yield task

    run_workers(list, tasks())
    assert seen == [threading.get_ident()] * 3


def test_each_worker_limits_blas_for_itself(monkeypatch):
    """With OpenMP a limit holds in the thread that set it, and nowhere else."""
    limits = threading.local()

    class PerThreadBlas:
        def info(self):
            return [{"num_threads": getattr(limits, "value", 2)}]

        @contextlib.contextmanager
        def limit(self, *, limits: int):
            before = self.info()[0]["num_threads"]
            set_limit(limits)
            yield
            set_limit(before)

    def set_limit(value):
        limits.value = value

    blas, seen = PerThreadBlas(), []
    monkeypatch.setattr(workers_module, "_blas_controller", lambda: blas)
    run_workers(lambda tasks: seen.extend(blas.info()[0]["num_threads"] for _ in tasks), range(9))
    assert seen == [1] * 9


def test_there_are_as_many_workers_as_blas_had_threads():
    meeting = threading.Barrier(3, timeout=20)
    with threadpool_limits(3, user_api="blas"):
        run_workers(lambda tasks: [meeting.wait() for _ in tasks], range(3))


def test_the_tasks_run_in_other_threads_with_blas_held_to_one():
    seen = []

    def work(tasks):
        seen.extend((threading.get_ident(), blas_threads()) for _ in tasks)

    run_workers(work, range(50))
    assert {threads for _, threads in seen} == {1}
    assert threading.get_ident() not in {thread for thread, _ in seen}
    assert blas_threads() == 2


def test_with_one_blas_thread_the_caller_works():
    seen = []
    with threadpool_limits(1, user_api="blas"):
        run_workers(collect(seen, blas_threads), [1])
    assert seen == [(threading.get_ident(), 1)]


def test_a_second_caller_works_alone_and_the_limit_ends_with_the_first():
    seen = []

    def first(tasks):
        for _ in tasks:
            # Nested, or from another thread: the workers are busy.
            run_workers(collect(seen, blas_threads), [1])
            seen.append((threading.get_ident(), blas_threads()))

    run_workers(first, [1])
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][1] == 1
    assert blas_threads() == 2


def test_the_next_caller_has_workers_again():
    for _ in range(2):
        test_the_tasks_run_in_other_threads_with_blas_held_to_one()


def test_a_limit_of_another_thread_that_cannot_be_changed_is_left_alone(monkeypatch):
    """threadpoolctl 3.8 ignores a thread while another one has an OpenBLAS limit in place."""
    monkeypatch.setattr(
        "threadpoolctl.OpenBLASController.set_num_threads", lambda self, num_threads: None
    )
    seen = []
    run_workers(collect(seen, blas_threads), [1])
    assert seen == [(threading.get_ident(), 2)]


def test_an_error_in_a_worker_reaches_the_caller_and_lifts_the_limit():
    def work(tasks):
        for task in tasks:
            if task == 3:
                raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run_workers(work, range(5))
    assert blas_threads() == 2


def test_where_nothing_can_hold_blas_the_caller_works(monkeypatch):
    find = workers_module._blas_controller.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr("threadpoolctl.ThreadpoolController.info", lambda self: [])
        assert find() is None
        patch.setitem(sys.modules, "threadpoolctl", None)
        assert find() is None
    monkeypatch.setattr(workers_module, "_blas_controller", lambda: None)
    seen = []
    run_workers(collect(seen, blas_threads), [1])
    assert seen == [(threading.get_ident(), 2)]


def test_error_state_is_the_workers_own():
    """NumPy's error state does not follow into a thread: a worker sets what it needs."""
    seen = []

    def work(tasks):
        seen.extend(np.geterr()["divide"] for _ in tasks)

    with np.errstate(divide="raise"):
        run_workers(work, range(4))
    assert set(seen) == {"warn"}
