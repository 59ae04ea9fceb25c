"""Row blocks on all cores: independent tasks, each on one thread, instead of threads inside BLAS.

NumPy runs matrix products on all cores and everything else on one. A tile loop has as much of the
else as of the products, and its products are small: threads that meet at the end of each lose time
waiting, much of it when other programs want the cores too. Row blocks need nothing of one another,
on a GPU they are thread blocks, so here a few workers take one after the other from a common list
while BLAS is held to one thread.

Only threadpoolctl can hold a BLAS library. Where it is not installed, or knows no way for the
library at hand (Apple's Accelerate), the caller does all tasks, and BLAS keeps its threads.
"""

import functools
import importlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["run_workers"]

Task = TypeVar("Task")

# The threads of BLAS belong to the process, and so does this. A caller that finds the workers busy
# finds the cores busy.
_workers_are_busy = threading.Lock()


def run_workers(work: Callable[[Iterator[Task]], None], tasks: Iterable[Task]) -> None:
    """Let workers share a list of tasks: as many as BLAS may use threads.

    So whatever limits BLAS (``OPENBLAS_NUM_THREADS``, threadpoolctl) limits the workers. One call
    at a time has workers; another one that comes meanwhile runs in its own thread.

    Parameters
    ----------
    work : callable
        Gets an iterator that all workers share, and does what it yields until it ends.
    tasks : iterable
        The tasks, independent of one another; the dearest ones first keeps the workers busy to the
        end.
    """
    # The iterator of a list may be shared between threads; a generator may not.
    shared = iter(list(tasks))
    blas = _blas_controller()
    if blas is None or not _workers_are_busy.acquire(blocking=False):
        work(shared)
        return
    try:
        num_threads = _max_threads(blas)
        with blas.limit(limits=1):
            # Without effect where another thread has set a limit that it has not taken back.
            is_held = _max_threads(blas) == 1
            if is_held and num_threads > 1:
                _share(work, shared, num_threads, blas)
        work(shared)  # all tasks if there were no workers, else none are left
    finally:
        _workers_are_busy.release()


def _share(
    work: Callable[[Iterator[Task]], None], shared: Iterator[Task], workers: int, blas: Any
) -> None:
    def work_alone() -> None:
        # With OpenMP the limit belongs to each thread, and the caller's does not reach here.
        with blas.limit(limits=1):
            work(shared)

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work_alone) for _ in range(workers)]:
            done.result()


def _max_threads(blas: Any) -> int:
    return max(int(library["num_threads"]) for library in blas.info())


@functools.cache
def _blas_controller() -> Any:
    """Return threadpoolctl's controller of the loaded BLAS libraries, or None."""
    try:
        threadpoolctl = importlib.import_module("threadpoolctl")
    except ImportError:
        return None
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return blas if blas.info() else None
