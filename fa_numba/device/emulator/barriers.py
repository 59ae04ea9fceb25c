"""Meeting points: the named barriers of a block and the collectives of a warp."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba.device.emulator.clocks import Row

if TYPE_CHECKING:
    from fa_numba.device.emulator.thread import Thread

__all__ = ["FULL_MASK", "WARP_SIZE", "NamedBarrier", "WarpMeeting", "barrier", "warp_meeting"]

WARP_SIZE = 32
FULL_MASK = 0xFFFFFFFF
NUM_BARRIERS = 16
MAX_THREADS = 1024


class NamedBarrier:
    """One of the sixteen barriers of a block, between two completions.

    Attributes
    ----------
    waiters : list of Thread
        Who waits.
    count : int
        How many threads complete it.
    arrived : list of Thread
        Who has arrived.
    generation : int
        Completions so far.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiters: list[Thread] = []
        self.generation = 0
        self.count = 0
        self.arrived: list[Thread] = []
        self._reset()

    def _reset(self) -> None:
        self.arrived = []
        self.syncing: list[Thread] = []
        self.released: Row | None = None
        self.time = 0.0
        # Place and number of arrivals for each warp.
        self.warps: dict[int, list[int]] = {}

    def __repr__(self) -> str:
        """Return number and count, for deadlock reports."""
        return f"barrier {self.number}, {len(self.arrived)} of {self.count} threads arrived"


class WarpMeeting:
    """The lanes of a warp that exchange values.

    Attributes
    ----------
    waiters : list of Thread
        Who waits.
    mask : int
        The lanes that meet, as bits.
    orders_memory : bool
        Whether the lanes know afterwards what all have done before.
    values : list
        What each lane brought, by lane; None for a lane that is not there.
    """

    __slots__ = ("done", "lanes", "mask", "orders_memory", "site", "time", "values", "waiters")

    def __init__(self, mask: int, site: int, *, orders_memory: bool) -> None:
        self.mask = mask
        self.orders_memory = orders_memory
        self.site = site
        self.waiters: list[Thread] = []
        self.values: list[Any] = [None] * WARP_SIZE
        self.lanes: list[Thread] = []
        self.done = False
        self.time = 0.0

    def __repr__(self) -> str:
        """Return how many lanes are there, for deadlock reports."""
        arrived, expected = len(self.lanes), self.mask.bit_count()
        return f"{arrived} of {expected} lanes arrived, mask {self.mask:#x}"


def barrier(thread: "Thread", number: int, count: int, *, arrive_only: bool) -> None:
    """Arrive at a named barrier, and wait for it unless `arrive_only`."""
    block = thread.block
    # A barrier over the whole block counts the missing lanes of its last warp as arrived.
    whole = count % WARP_SIZE == 0 or count == len(block.threads)
    if not (0 <= number < NUM_BARRIERS and 0 < count <= MAX_THREADS and whole):
        text = f"barrier {number} with {count} threads; there are barriers 0 to 15, for whole warps"
        thread.give_up(thread.hazard("barrier", text))
    meeting = block.barriers.get(number)
    if meeting is None:
        meeting = block.barriers[number] = NamedBarrier(number)
    if not meeting.arrived:
        meeting.count = count
    elif meeting.count != count:
        text = f"barrier {number} for {count} threads, after others came to it for {meeting.count}"
        thread.hazard("barrier", text)
    _note_warp(thread, meeting)
    meeting.arrived.append(thread)
    meeting.time = max(meeting.time, thread.time)
    if arrive_only:
        row = block.clocks.release(thread)
        known = meeting.released
        if known is not None:
            np.maximum(row[: len(known)], known, out=row[: len(known)])
        meeting.released = row
    else:
        meeting.syncing.append(thread)
    if len(meeting.arrived) >= meeting.count:
        _complete(thread, meeting)
    elif not arrive_only:
        generation = meeting.generation
        while meeting.generation == generation:
            thread.wait(meeting, "barrier")


def _note_warp(thread: "Thread", meeting: NamedBarrier) -> None:
    """Check that the lanes of a warp come to a barrier at one place."""
    site = thread.site()
    warp = meeting.warps.get(thread.warp)
    if warp is None:
        meeting.warps[thread.warp] = [site, 1]
        return
    warp[1] += 1
    if warp[0] != site:
        other = thread.machine.sites.site(warp[0])
        text = (
            f"comes to barrier {meeting.number}, to which another lane of warp {thread.warp} "
            f"comes {other}"
        )
        thread.hazard("divergent-barrier", text)


def _complete(thread: "Thread", meeting: NamedBarrier) -> None:
    block = thread.block
    for warp, (_, arrivals) in meeting.warps.items():
        lanes = len(block.warps[warp].threads)
        if arrivals < lanes:
            text = (
                f"barrier {meeting.number} completes with {arrivals} of the {lanes} lanes of warp "
                f"{warp}; it counts whole warps, so all lanes must come to it together"
            )
            thread.hazard("divergent-barrier", text)
    syncing, released = meeting.syncing, meeting.released
    time = meeting.time
    if syncing:
        block.clocks.join(syncing, released)
        if len(syncing) == len(block.threads):
            block.settle(syncing[0])
        for t in syncing:
            t.time = time
    meeting.generation += 1
    meeting._reset()
    thread.machine.notify(meeting)


def warp_meeting(thread: "Thread", value: Any, mask: int, *, orders_memory: bool) -> list[Any]:
    """Exchange a value with the lanes in `mask`, and return the values by lane."""
    if not mask >> thread.lane & 1:
        text = f"mask {mask:#x} leaves out the calling lane {thread.lane}"
        thread.give_up(thread.hazard("shuffle-lane", text))
    meetings = thread.block.warps[thread.warp].meetings
    meeting = meetings.get(mask)
    site = thread.site()
    if meeting is None:
        meeting = meetings[mask] = WarpMeeting(mask, site, orders_memory=orders_memory)
    elif meeting.site != site:
        other = thread.machine.sites.site(meeting.site)
        thread.hazard("divergent-barrier", f"meets lanes of its warp that come {other}")
    meeting.values[thread.lane] = value
    meeting.lanes.append(thread)
    if thread.time > meeting.time:
        meeting.time = thread.time
    if not complete_if_full(thread, meeting):
        while not meeting.done:
            thread.wait(meeting, "warp")
    return meeting.values


def complete_if_full(thread: "Thread", meeting: WarpMeeting) -> bool:
    """Complete a meeting if every lane of its mask that still runs has come."""
    warp = thread.block.warps[thread.warp]
    if len(meeting.lanes) < (meeting.mask & warp.running).bit_count():
        return False
    del warp.meetings[meeting.mask]
    meeting.done = True
    lanes = meeting.lanes
    if meeting.orders_memory:
        block = thread.block
        block.clocks.join(lanes)
        if len(lanes) == len(block.threads):
            block.settle(lanes[0])
    for t in lanes:
        t.time = meeting.time
    thread.machine.notify(meeting)
    return True
