"""Asynchronous engines: work that a thread starts and that ends some time later.

An op's emulation *submits* an `AsyncOp` to an `Engine`. Two things follow.

**What is right is decided at once.** The operation is an actor of its own (`clocks`): what its
issuer knows happens before it, and nothing more. Its reads and writes are recorded when it is
issued, so a buffer that is still in use is reported (a write over an unordered read), and whoever
touches its bytes without having waited is reported, whatever the timing. What it writes is poisoned
from issue to completion.

**When it ends is the policy's choice**, within what the hardware guarantees: ``"early"``, at the
moment it is issued; ``"late"``, when no thread can run otherwise, and then only what somebody waits
for, as long as there is such a thing; ``"random"``, in between. So a wait for the wrong operation
gives wrong numbers or a deadlock, even where no byte is touched too early.

How the instructions to come fit in, each as ops in `fa_numba.device.ops` and no change here:

cp.async
    An engine that completes in any order. An op per copy: reads global bytes, writes 16 shared
    bytes. ``commit_group`` gathers a thread's operations since the last one in a group, which is
    their `signal`; ``wait_group n`` waits until all groups but the last n are done, then acquires
    each operation.
mbarrier
    An object in a dictionary of the block by its shared address, with a list ``waiters``, a phase,
    pending arrivals and bytes. An arrival stores ``thread.release()``, a wait loops on
    ``thread.wait`` until the phase has flipped, then ``thread.acquire`` of what was released.
TMA (cp.async.bulk.tensor)
    Like cp.async, with an mbarrier as signal: `actions` are the pieces of the box, which may land
    in any order; each writes its bytes and takes them off the barrier's count. `on_done` adds the
    operation's row to what the phase releases. The address map (swizzle, zero fill) is plain index
    arithmetic of the op.
WGMMA
    An engine with ``in_order=True`` and ``unit="matrix"``. The 128 threads of a warpgroup join one
    record; the last one submits it, with the byte ranges of its descriptors as reads. Accumulators
    are handles that hold NaN until ``wait_group`` returns them.
Clusters
    The blocks of a cluster share clocks and run together (`Machine.launch`); remote addresses and
    multicast name another block's `SharedMemory` in `reads` and `writes`; ``barrier.cluster`` is a
    `NamedBarrier` over all of them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fa_numba.device.emulator.clocks import Actor

if TYPE_CHECKING:
    from fa_numba.device.emulator.machine import Machine
    from fa_numba.device.emulator.thread import Thread

__all__ = ["POLICIES", "UNITS", "AsyncOp", "Engine", "parse_policy"]

POLICIES = ("late", "early", "random")
UNITS = ("copy", "matrix")


class Memory(Protocol):
    """What an operation uses: a `SharedMemory` or a `Window` of global memory."""

    def use_async(self, who: Actor, lo: int, hi: int, site: int, *, write: bool) -> None:
        """Record that an operation uses the addresses [lo, hi)."""


Range = tuple[Memory, int, int]


class AsyncOp(Actor):
    """An operation under way.

    Attributes
    ----------
    name : str
        For reports and the trace.
    issuer : Thread
        Who issued it.
    place : int
        Number of the kernel line that issued it.
    signal : object
        Has a list ``waiters`` of the threads that wait for it; may be shared by operations.
    done : bool
        Whether it has ended.
    awaited : bool
        Whether a thread has acquired it.
    ready_time : float
        Virtual time at which it ends.
    """

    __slots__ = (
        "actions",
        "awaited",
        "done",
        "issuer",
        "name",
        "on_done",
        "place",
        "ready_time",
        "signal",
        "waiters",
    )

    def __init__(
        self,
        name: str,
        issuer: "Thread",
        actions: Sequence[Callable[[], None]],
        signal: Any,
        on_done: Callable[["AsyncOp"], None] | None,
    ) -> None:
        self.name = name
        self.issuer = issuer
        self.place = issuer.site()
        self.actions = list(actions)
        self.waiters: list[Thread] = []
        self.signal = self if signal is None else signal
        self.on_done = on_done
        self.done = False
        self.awaited = False
        self.ready_time = 0.0

    def __repr__(self) -> str:
        """Return name, issuer and state."""
        return f"{self.name} of {self.issuer}, {'done' if self.done else 'under way'}"

    def origin(self) -> tuple["Thread", int]:
        """Return who issued it, and where."""
        return self.issuer, self.place

    def acquire(self, thread: "Thread") -> None:
        """Let a thread know that the operation has happened, after it is done."""
        self.awaited = True
        thread.acquire(self.row)
        thread.time = max(thread.time, self.ready_time)


class Engine:
    """A unit that works beside the threads.

    Parameters
    ----------
    machine : Machine
        The machine.
    name : str
        Names it in reports and the trace.
    unit : str
        Which half of the policy it follows: ``"copy"`` or ``"matrix"``.
    in_order : bool
        Whether operations end in the order of their issue.
    latency : float
        Cycles from the end of an operation to when a waiting thread sees it.
    """

    def __init__(
        self,
        machine: "Machine",
        name: str,
        *,
        unit: str = "copy",
        in_order: bool = False,
        latency: float = 0.0,
    ) -> None:
        self.machine = machine
        self.name = name
        self.policy = machine.policy[unit]
        self.in_order = in_order
        self.latency = latency
        self.pending: list[AsyncOp] = []
        self._unseen: list[AsyncOp] = []
        self._free_time = 0.0

    def submit(
        self,
        issuer: "Thread",
        name: str,
        *,
        actions: Sequence[Callable[[], None]],
        reads: Sequence[Range] = (),
        writes: Sequence[Range] = (),
        signal: Any = None,
        on_done: Callable[[AsyncOp], None] | None = None,
        cycles: float = 1.0,
        must_wait: bool = True,
    ) -> AsyncOp:
        """Start an operation.

        Parameters
        ----------
        issuer : Thread
            The thread that executes the op.
        name : str
            For reports.
        actions : sequence of callable
            What the operation does, in pieces that may happen in any order (one after the other on
            an engine that is in order).
        reads, writes : sequence of (memory, lo, hi)
            The addresses [lo, hi) that it uses, checked by the caller to exist.
        signal : object, optional
            What threads wait for; by default the operation itself.
        on_done : callable, optional
            Called with the operation after its last piece.
        cycles : float
            For how long it keeps the engine busy.
        must_wait : bool
            Whether it is a hazard if the block ends and no thread has acquired the operation.

        Returns
        -------
        AsyncOp
            The operation; it may be done already.
        """
        operation = AsyncOp(name, issuer, actions, signal, on_done)
        issuer.block.clocks.fork(issuer, operation, f"the {name} of thread {issuer.tid}")
        for memory, lo, hi in reads:
            memory.use_async(operation, lo, hi, operation.place, write=False)
        for memory, lo, hi in writes:
            memory.use_async(operation, lo, hi, operation.place, write=True)
        start = max(issuer.time, self._free_time)
        self._free_time = start + cycles
        operation.ready_time = start + cycles + self.latency
        if self.machine.trace is not None:
            self.machine.trace.add_async(issuer.block.index, self.name, name, start, cycles)
        self.pending.append(operation)
        if must_wait:
            self._unseen.append(operation)
        if self.policy == "early":
            while operation.actions:
                self.advance(self.candidates()[0])
        return operation

    def candidates(self) -> list[AsyncOp]:
        """Return the operations of which a piece may happen next."""
        return self.pending[:1] if self.in_order else self.pending

    def wanted(self) -> list[AsyncOp]:
        """Return those that must happen before some waiting thread can go on."""
        if self.in_order:
            return self.pending[:1] if any(op.signal.waiters for op in self.pending) else []
        return [op for op in self.pending if op.signal.waiters]

    def finish(self) -> None:
        """Complete everything at the end of a block, and report what nobody has waited for."""
        while self.pending:
            self.advance(self.pending[0])
        for operation in self._unseen:
            if not operation.awaited:
                text = f"the block ends and no thread has waited for the {operation.name}"
                self.machine.report("unwaited", text, operation)

    def clear(self) -> None:
        """Forget the operations of a block."""
        self.pending.clear()
        self._unseen.clear()
        self._free_time = 0.0

    def advance(self, operation: AsyncOp) -> None:
        """Let one piece of an operation happen."""
        pieces = operation.actions
        any_order = not self.in_order and self.policy != "early"
        pieces.pop(self.machine.rng.randrange(len(pieces)) if any_order else 0)()
        if not pieces:
            self.pending.remove(operation)
            operation.done = True
            if operation.on_done is not None:
                operation.on_done(operation)
            self.machine.notify(operation.signal)


def parse_policy(policy: str) -> dict[str, str]:
    """Split a policy into that of copies and that of matrix units.

    Parameters
    ----------
    policy : str
        ``"copies/matrix"``, each ``"late"``, ``"early"`` or ``"random"``; one word stands for both.

    Returns
    -------
    dict
        The policy of each unit.
    """
    words = policy.split("/") if isinstance(policy, str) else []
    if len(words) == 1:
        words *= 2
    if len(words) != 2 or not set(words) <= set(POLICIES):
        raise ValueError(
            f"policy is {policy!r}; accepted are 'late', 'early', 'random', or two of them for "
            "copies and matrix units, like 'late/early'"
        )
    return dict(zip(UNITS, words, strict=True))
