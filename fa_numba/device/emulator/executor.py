"""Who runs next: threads are greenlets that hand over to each other.

``round_robin``
    A thread runs until it must wait; then the one that has been ready longest runs.
``random``
    The same with any ready thread, and a thread may be interrupted before every op that touches
    memory or other threads. How often is drawn from the seed.
``time``
    The thread whose virtual clock is furthest behind runs, op by op.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba.device.emulator import state
from fa_numba.device.emulator.hazards import Deadlock

if TYPE_CHECKING:
    from fa_numba.device.emulator.machine import Machine
    from fa_numba.device.emulator.thread import Thread

__all__ = ["SCHEDULES", "Executor"]

SCHEDULES = ("round_robin", "random", "time")

# How likely a thread is interrupted before an op. Rare interruptions let one thread run far ahead.
_PREEMPTION = (0.3, 0.1, 0.02)

# How likely an asynchronous operation ends when another thread gets its turn, under "random".
_PROGRESS = (0.3, 0.03, 0.003)


class Executor:
    """Runs the threads of a block, or of the blocks of a cluster.

    Parameters
    ----------
    machine : Machine
        The machine.
    schedule : str
        One of `SCHEDULES`.
    seed : int
        For everything that is drawn.
    """

    def __init__(self, machine: "Machine", schedule: str, seed: int) -> None:
        try:
            import greenlet  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise ImportError(
                "the emulator needs greenlet: pip install 'fa_numba[emulator]'"
            ) from error
        self._greenlet = greenlet.greenlet
        self._getcurrent = greenlet.getcurrent
        self.machine = machine
        self.schedule = schedule
        self.rng = random.Random(seed)
        self.preemption = self.rng.choice(_PREEMPTION) if schedule == "random" else 0.0
        self._progress = self.rng.choice(_PROGRESS) if machine.has_random_engines else 0.0
        self._queue: deque[Thread] = deque()
        self._list: list[Thread] = []
        self._heap: list[tuple[float, int, Thread]] = []
        self._sequence = 0
        self._running = 0
        self._handed_over: Thread | None = None
        self._hub: Any = None

    def run(self, threads: Sequence["Thread"], call: Callable[[], None]) -> None:
        """Let every thread call `call`, until all have returned.

        Raises
        ------
        Deadlock
            If some wait and nothing can wake them.
        """
        self._hub = self._getcurrent()

        def body(thread: "Thread") -> None:
            # NumPy's error state belongs to the greenlet. A GPU does not raise.
            with np.errstate(all="ignore"):
                try:
                    call()
                except Exception as error:
                    where = f"block {thread.block.index}, thread {thread.tid}"
                    error.add_note(f"in kernel {self.machine.kernel_name}, {where}")
                    raise
            self._running -= 1
            thread.block.finish(thread)

        for thread in threads:
            thread.greenlet = self._greenlet(body)
        self._clear()
        self.make_ready(threads)
        self._running = len(threads)
        try:
            while self._running:
                following = self._handed_over or self._next()
                self._handed_over = None
                if following is None:
                    if not self.machine.progress(idle=True):
                        raise Deadlock(self.machine.deadlock_report(threads))
                    continue
                state.current = following
                # Comes back when a thread returns, not necessarily this one, or waits and no
                # other thread that has begun can run.
                if following.greenlet:
                    following.greenlet.switch()
                else:
                    following.greenlet.switch(following)
        finally:
            state.current = None
            self._clear()
            for thread in threads:
                if thread.greenlet and not thread.finished:
                    thread.greenlet.throw()
                thread.greenlet = thread.frame = None

    def make_ready(self, threads: Sequence["Thread"]) -> None:
        """Let threads run when their turn comes."""
        if self.schedule == "round_robin":
            self._queue.extend(threads)
        elif self.schedule == "random":
            self._list.extend(threads)
        else:
            for thread in threads:
                self._sequence += 1
                heapq.heappush(self._heap, (thread.time, self._sequence, thread))

    def suspend(self) -> None:
        """Stop the running thread. It goes on when it has been made ready and its turn comes."""
        current = state.current
        following = self._next()
        if following is current:
            return
        if following is not None and following.greenlet:
            state.current = following
            following.greenlet.switch()
        else:
            # A greenlet inherits the depth of who starts it, so all are started by the hub.
            self._handed_over = following
            self._hub.switch()

    def before(self, thread: "Thread") -> None:
        """Interrupt a thread before an op, if the schedule says so."""
        if self.schedule == "random":
            if self.rng.random() < self.preemption:
                self._list.append(thread)
                self.suspend()
        elif self.schedule == "time" and self._heap and self._heap[0][0] < thread.time:
            self.make_ready((thread,))
            self.suspend()

    def _next(self) -> "Thread | None":
        """Take the next thread from those that are ready."""
        if self._progress and self.rng.random() < self._progress:
            self.machine.progress(idle=False)
        if self._queue:
            return self._queue.popleft()
        if self._list:
            i = self.rng.randrange(len(self._list))
            ready = self._list
            ready[i], ready[-1] = ready[-1], ready[i]
            return ready.pop()
        if self._heap:
            return heapq.heappop(self._heap)[2]
        return None

    def _clear(self) -> None:
        self._handed_over = None
        self._queue.clear()
        self._list.clear()
        self._heap.clear()
