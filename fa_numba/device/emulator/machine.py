"""The emulated GPU: launches kernels, keeps what was found."""

import random
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba.device.emulator import ints, state
from fa_numba.device.emulator.banks import BankCount, BankCounter
from fa_numba.device.emulator.block import Block
from fa_numba.device.emulator.clocks import Clocks
from fa_numba.device.emulator.engines import Engine, parse_policy
from fa_numba.device.emulator.executor import SCHEDULES, Executor
from fa_numba.device.emulator.global_memory import GlobalMemory
from fa_numba.device.emulator.hazards import Hazard, HazardLog
from fa_numba.device.emulator.reports import ActorNames, deadlock_report, unwritten_text
from fa_numba.device.emulator.sites import Site, Sites
from fa_numba.device.emulator.thread import Thread
from fa_numba.device.emulator.trace import Trace

if TYPE_CHECKING:
    from fa_numba.device.kernel import Kernel

__all__ = ["Machine"]

Index = tuple[int, int, int]


class Machine:
    """A GPU that runs kernels in Python and reports what is wrong with them.

    Parameters
    ----------
    policy : str
        When asynchronous copies and matrix units end, within what the hardware guarantees:
        ``"copies/matrix"``, each ``"late"``, ``"early"`` or ``"random"``; one word stands for both.
    schedule : str
        Who runs next: ``"round_robin"``, ``"random"`` or ``"time"``; see `executor`.
    seed : int
        For everything that is drawn: the same seed gives the same run.
    trace : bool or str
        Whether to record a trace: False, True or ``"warps"`` (a track for each warp), or
        ``"threads"``.
    strict : bool
        Whether integers follow Numba's rules to the letter (`ints`). Two to three times as slow.

    Attributes
    ----------
    trace : Trace or None
        The trace.
    memory : GlobalMemory
        The arrays of the launch under way, or of the last one.
    engines : dict
        Asynchronous engines by name.
    """

    def __init__(
        self,
        policy: str = "late/late",
        schedule: str = "round_robin",
        seed: int = 0,
        trace: bool | str = False,
        strict: bool = False,
    ) -> None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is {schedule!r}; accepted are {', '.join(SCHEDULES)}")
        self.policy = parse_policy(policy)
        self.has_random_engines = "random" in self.policy.values()
        self.trace = None if trace is False else Trace("warps" if trace is True else trace)
        self.strict = strict
        self.observes = self.trace is not None or strict or schedule != "round_robin"
        self.rng = random.Random(seed)
        self.executor = Executor(self, schedule, seed)
        self.sites = Sites()
        self.memory = GlobalMemory(self)
        self.engines: dict[str, Engine] = {}
        self.kernel_name = ""
        self._log = HazardLog()
        self._banks = BankCounter()
        self._names = ActorNames()

    @property
    def hazards(self) -> list[Hazard]:
        """What was found so far, in all launches."""
        return self._log.found

    @property
    def bank_conflicts(self) -> list[BankCount]:
        """The shared-memory accesses of all launches by op and line, the worst first."""
        return self._banks.counts(self.sites)

    def launch(
        self,
        kernel: "Kernel",
        grid: int | tuple[int, ...],
        args: Sequence[Any],
        *,
        cluster: int = 1,
    ) -> None:
        """Run every block of a kernel.

        Parameters
        ----------
        kernel : Kernel
            The kernel.
        grid : int or tuple of int
            Blocks in x, or in x, y and z.
        args : sequence
            In the order of the parameters: NumPy arrays for pointers, numbers for the rest. A
            pointer may be 0 too, if the kernel does not use it.
        cluster : int
            How many blocks, neighbours in x, run at the same time. Others run one after another.

        Raises
        ------
        Deadlock
            If threads wait for what cannot come.
        EmulationError
            If the kernel reads from where nothing is.
        """
        sizes = (grid,) if isinstance(grid, int) else grid
        grid_x, grid_y, grid_z = (*sizes, 1, 1)[:3]
        if grid_x % cluster:
            raise ValueError(f"grid is {grid}; its x must be a multiple of cluster={cluster}")
        self.memory = GlobalMemory(self)
        self.kernel_name = kernel.name
        values = self._bind(kernel, args)
        self._names = ActorNames()
        if self.trace is not None:
            self.trace.begin_launch(kernel.name)
        clocks = Clocks([])
        self.memory.start(clocks)
        for z in range(grid_z):
            for y in range(grid_y):
                for x in range(0, grid_x, cluster):
                    indices = [(x + rank, y, z) for rank in range(cluster)]
                    clocks = self._run(
                        kernel, indices, (grid_x, grid_y, grid_z), values, clocks.last
                    )
        self._report_unwritten(kernel)

    def engine(self, name: str, **properties: Any) -> Engine:
        """Return the engine of that name, made at the first call; see `Engine`."""
        engine = self.engines.get(name)
        if engine is None:
            engine = self.engines[name] = Engine(self, name, **properties)
        return engine

    def notify(self, waitable: Any) -> None:
        """Wake all that wait for an object. Each looks again whether it may go on."""
        waiters = waitable.waiters
        if waiters:
            waitable.waiters = []
            self.executor.make_ready(waiters)

    def progress(self, *, idle: bool) -> bool:
        """Let a piece of one asynchronous operation happen.

        Parameters
        ----------
        idle : bool
            Whether no thread can run. If one can, only engines under "random" move.

        Returns
        -------
        bool
            False if nothing is under way.
        """
        engines = [e for e in self.engines.values() if idle or e.policy == "random"]
        choices = [(e, op) for e in engines for op in e.wanted()] if idle else []
        choices = choices or [(e, op) for e in engines for op in e.candidates()]
        if not choices:
            return False
        engine, operation = self.rng.choice(choices)
        engine.advance(operation)
        return True

    def observe(self, thread: Thread, op: Any, values: Sequence[Any], frame: FrameType) -> Any:
        """Execute an op with everything that costs time: schedule, clock, trace, strict types."""
        outer = thread.op
        if op.side_effect:
            thread.op = op
            if outer is None:
                thread.frame = frame
            self.executor.before(thread)
        begin = thread.time
        thread.time += op.cycles
        result = op.emulation(thread, *values) if op.side_effect else op.emulation(*values)
        thread.op = outer
        if self.trace is not None:
            place = self.sites.number(frame, op)
            self.trace.add(thread, op.name, place, begin, thread.time)
        if self.strict:
            return ints.typed(getattr(op.result, "tag", None), result)
        return result

    def report(self, kind: str, message: str, who: Any) -> Hazard:
        """Record a hazard of a thread or of an asynchronous operation."""
        thread, place = who.origin()
        return self._log.add(
            kind,
            message,
            kernel=self.kernel_name,
            block=thread.block.index,
            thread=thread.tid,
            site=self.sites.site(place),
        )

    def name_actor(self, actor: int, clock: int, block: Index | None = None) -> str:
        """Name the actor of an earlier access; its block too, if it is not `block`."""
        return self._names.name(actor, clock, block)

    def deadlock_report(self, threads: Sequence[Thread]) -> str:
        """Say who waits where and for what."""
        return deadlock_report(self.kernel_name, threads, self.hazards)

    def _run(
        self, kernel: "Kernel", indices: list[Index], grid: Index, values: list[Any], start: int
    ) -> Clocks:
        """Run the blocks of one cluster. `start` is the last clock of those before."""
        blocks = [Block(self, index, kernel.block, grid, i) for i, index in enumerate(indices)]
        threads = [thread for block in blocks for thread in block.threads]
        clocks = Clocks(threads, start)
        self._names.add(clocks, indices, kernel.num_threads)
        self.memory.set_clocks(clocks)
        for block in blocks:
            block.start(clocks, kernel.smem_bytes, blocks)
        function = kernel.function
        state.strict = ints.typed if self.strict else None
        try:
            self.executor.run(threads, lambda: function(*values))
            for engine in self.engines.values():
                engine.finish()
        finally:
            state.strict = None
            for engine in self.engines.values():
                engine.clear()
            for block in blocks:
                self._banks.add_block(block.shared.accesses)
        return clocks

    def _bind(self, kernel: "Kernel", args: Sequence[Any]) -> list[Any]:
        """Turn the arguments of a launch into what the kernel gets."""
        parameters = kernel.parameters
        if len(args) != len(parameters):
            raise TypeError(f"{kernel.name} takes {len(parameters)} arguments, got {len(args)}")
        values = []
        for (name, kind), arg in zip(parameters.items(), args, strict=True):
            value = arg
            if kind.role and isinstance(arg, np.ndarray):
                value = self.memory.add(name, arg, kind.role)
            elif not isinstance(arg, int | float | np.number | np.bool):
                accepted = "a NumPy array or 0" if kind.role else "a number"
                raise TypeError(
                    f"argument {name} of {kernel.name} is a {type(arg).__name__}; accepted in the "
                    f"emulator is {accepted}"
                )
            value = kind.convert(value)
            values.append(ints.typed(kind.tag, value) if self.strict else value)
        return values

    def _report_unwritten(self, kernel: "Kernel") -> None:
        code = kernel.function.__code__
        for window in self.memory.windows:
            text = unwritten_text(window) if window.role == "out" else ""
            if text:
                source = f"def {code.co_name}(...)"
                site = Site("", code.co_filename, code.co_firstlineno, source)
                name = kernel.name
                self._log.add("unwritten", text, kernel=name, block=None, thread=None, site=site)
