"""Toy ops for the tests of the emulator: each does one thing to the machine."""

import inspect

import numpy as np

from fa_numba.device.emulator.machine import Machine
from fa_numba.device.ops.declare import instruction


def op(signature, **properties):
    return instruction("", signature, since=(5, 0), section="toy", side_effect=True, **properties)


@op("i32()")
def tid(thread):
    return thread.tid


@op("i32()")
def block_x(thread):
    return thread.block.index[0]


@op("u32()")
def base(thread):
    return thread.block.shared.base


@op("f32(u32)", cycles=4)
def load(thread, address):
    return thread.shared_read(address, 4).view(np.float32)[0]


@op("void(u32, f32)", cycles=2)
def store(thread, address, value):
    thread.shared_write(address, np.float32([value]).view(np.uint8))


@op("u32[4](u32)")
def load4(thread, address):
    return thread.shared_read(address, 16).view(np.uint32)


@op("void(u32, f32)")
def store4(thread, address, value):
    thread.shared_write(address, np.full(4, value, np.float32).view(np.uint8))


@op("f32(u32, u32)")
def sum_range(thread, address, count):
    """Composite: reads many bytes at once."""
    thread.shared_read_ranges([(address, address + 4 * count)])
    first = address - thread.block.shared.base
    return thread.block.shared.bytes[first : first + 4 * count].view(np.float32).sum()


@op("f32(u64)")
def load_global(thread, address):
    return thread.global_read(address, 4).view(np.float32)[0]


@op("f32(u64)")
def load_global4(thread, address):
    return thread.global_read(address, 16).view(np.float32)[0]


@op("void(u64, f32)")
def store_global(thread, address, value):
    thread.global_write(address, np.float32([value]).view(np.uint8))


@op("void(u32, u32)")
def bar_sync(thread, number, count):
    thread.barrier(number, count)


@op("void(u32, u32)")
def bar_arrive(thread, number, count):
    thread.barrier(number, count, arrive_only=True)


@op("f32(f32, u32)")
def shuffle_xor(thread, value, mask):
    other = thread.warp_exchange(value)[thread.lane ^ mask]
    return value if other is None else other


@op("f32(f32, u32)")
def exchange(thread, value, mask):
    """Sum over the lanes in the mask."""
    return sum(x for x in thread.warp_exchange(value, mask) if x is not None)


@op("void(u32)")
def warp_sync(thread, mask):
    thread.warp_sync(mask)


def machine_for(kernel, grid=1, args=(), **options):
    """Run a kernel on a machine of its own, which is returned."""
    machine = Machine(**options)
    machine.launch(kernel, grid, args)
    return machine


def line_of(kernel, mark):
    """Return the number of the only line of a kernel that ends with ``# mark``."""
    lines, first = inspect.getsourcelines(kernel.function)
    found = [i for i, line in enumerate(lines, first) if line.rstrip().endswith(f"# {mark}")]
    assert len(found) == 1, (mark, found)
    return found[0]


def the_hazard(machine, kind, kernel, mark, op, also=(), **fields):
    """Return the hazard of that kind at that op and line, checked.

    There must be one such hazard, and none of a kind that is neither this nor in `also`.
    """
    reports = [str(h) for h in machine.hazards]
    assert {h.kind for h in machine.hazards} <= {kind, *also}, reports
    place = (kind, op, line_of(kernel, mark))
    found = [h for h in machine.hazards if (h.kind, h.op, h.line) == place]
    assert len(found) == 1, (place, reports)
    (hazard,) = found
    assert hazard.file == kernel.function.__code__.co_filename
    assert hazard.source.endswith(f"# {mark}")
    assert hazard.kernel == kernel.name
    for name, value in fields.items():
        assert getattr(hazard, name) == value, (name, getattr(hazard, name), value)
    return hazard


class CopyGroup:
    """The copies of a thread between two commits: what a wait waits for."""

    def __init__(self):
        self.waiters = []
        self.copies = []

    def __repr__(self):
        return f"copies {self.copies}"


# Copies that a thread has issued and not yet waited for.
groups = {}


@op("void(u32, u64)")
def copy_async(thread, shared, address):
    """Copy 4 bytes from global to shared memory, some time."""
    memory = thread.machine.memory.window_of(address)
    first, block = shared - thread.block.shared.base, thread.block
    source = address - memory.start

    def land():
        block.shared.bytes[first : first + 4] = memory.bytes[source : source + 4]

    engine = thread.machine.engine("toy copy", unit="copy", latency=100)
    group = groups.setdefault(thread, CopyGroup())
    group.copies.append(
        engine.submit(
            thread,
            "copy",
            actions=[land],
            reads=[(memory, address, address + 4)],
            writes=[(thread.block.shared, shared, shared + 4)],
            signal=group,
            cycles=10,
        )
    )


@op("void()")
def copy_wait(thread):
    """Wait for all copies of this thread."""
    group = groups.pop(thread, CopyGroup())
    while not all(copy.done for copy in group.copies):
        thread.wait(group, "copy_wait")
    for copy in group.copies:
        copy.acquire(thread)
