"""The shared memory of a block: its bytes, and checks of every access to them."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fa_numba.device.emulator.clocks import Actor
from fa_numba.device.emulator.shadow import Shadow

if TYPE_CHECKING:
    from fa_numba.device.emulator.block import Block
    from fa_numba.device.emulator.thread import Thread

__all__ = ["POISON", "SHARED_BASE", "SharedMemory"]

Bytes = npt.NDArray[np.uint8]

SHARED_BASE = 0x410
"""Address of the first byte. Aligned to 16 bytes and no further, as on a GPU: what needs more must
round up itself."""

POISON = 0xFF
"""What unwritten bytes hold: a NaN in every floating-point format."""

_TEXT = {
    "uninitialised": "reads {byte}, which nothing has written",
    "write-read": "reads {byte}, written by {other}{place} with nothing to order the two",
    "read-write": "overwrites {byte}, read by {other}{place} with nothing to order the two",
    "write-write": "overwrites {byte}, written by {other}{place} with nothing to order the two",
}


class SharedMemory:
    """Shared memory of one block.

    Parameters
    ----------
    block : Block
        The block.
    size : int
        Bytes.

    Attributes
    ----------
    base : int
        Address of the first byte.
    bytes : ndarray
        The bytes, (size,) uint8. For composite ops that announce their accesses themselves
        (`Thread.shared_read_ranges`).
    shadow : Shadow
        Who used which byte.
    accesses : list of int
        Thread, site, offset and width of every access of the block's threads, for the bank counter.
    """

    def __init__(self, block: "Block", size: int) -> None:
        self.block = block
        self.base = SHARED_BASE
        self.sites = block.machine.sites
        self.size = size
        self.bytes: Bytes = np.full(size, POISON, np.uint8)
        self.shadow = Shadow(size, block.clocks, self._conflict)
        self.accesses: list[int] = []

    def read(self, thread: "Thread", address: int, nbytes: int, align: int) -> Bytes:
        """Return a copy of bytes, checked."""
        lo = address - SHARED_BASE
        hi = lo + nbytes
        if lo < 0 or hi > self.size or address % align:
            self._refuse(thread, address, nbytes, align, "reads")
        site = self.sites.number(thread.frame, thread.op)
        if thread.block is self.block:
            self.shadow.read(thread, lo, hi, site)
            self.accesses.extend((thread.tid, site, lo, nbytes))
        else:
            self.shadow.read_outside(thread, lo, hi, site)
        return self.bytes[lo:hi].copy()

    def write(self, thread: "Thread", address: int, data: Bytes, align: int) -> None:
        """Write bytes, checked. A write outside is reported and dropped."""
        lo = address - SHARED_BASE
        nbytes = len(data)
        hi = lo + nbytes
        if (lo < 0 or hi > self.size or address % align) and self._refuse(
            thread, address, nbytes, align, "writes"
        ):
            return
        site = self.sites.number(thread.frame, thread.op)
        if thread.block is self.block:
            self.shadow.write(thread, lo, hi, site)
            self.accesses.extend((thread.tid, site, lo, nbytes))
        else:
            self.shadow.write_outside(thread, lo, hi, site)
        self.bytes[lo:hi] = data

    def read_range(self, thread: "Thread", lo: int, hi: int) -> None:
        """Announce that a thread reads the addresses [lo, hi)."""
        if lo < SHARED_BASE or hi > SHARED_BASE + self.size:
            self._refuse(thread, lo, hi - lo, 1, "reads")
        self.shadow.read(thread, lo - SHARED_BASE, hi - SHARED_BASE, thread.site())

    def use_async(self, who: Actor, lo: int, hi: int, site: int, *, write: bool) -> None:
        """Announce that an asynchronous operation uses the addresses [lo, hi).

        What it writes is undefined from now on: the bytes are poisoned.
        """
        lo, hi = lo - SHARED_BASE, hi - SHARED_BASE
        if write:
            self.shadow.write_outside(who, lo, hi, site)
            self.bytes[lo:hi] = POISON
        else:
            self.shadow.read_outside(who, lo, hi, site)

    def contains(self, lo: int, hi: int) -> bool:
        """Tell whether the addresses [lo, hi) are all in this memory."""
        return lo >= SHARED_BASE and hi <= SHARED_BASE + self.size

    def name(self, address: int) -> str:
        """Name an address in a report."""
        return f"the byte at {address:#x} (offset {address - SHARED_BASE}) of shared memory"

    def _refuse(self, thread: "Thread", address: int, nbytes: int, align: int, verb: str) -> bool:
        """Report a bad address. Return whether the access is to be dropped."""
        if not self.contains(address, address + nbytes):
            text = (
                f"{verb} {nbytes} bytes at {address:#x}, outside the {self.size} bytes of shared "
                f"memory at {SHARED_BASE:#x}"
            )
            hazard = thread.hazard("out-of-bounds", text)
            if verb == "reads":
                thread.give_up(hazard)
            return True
        text = f"{verb} {nbytes} bytes of shared memory at {address:#x}, no multiple of {align}"
        thread.hazard("misaligned", text)
        return False

    def _conflict(
        self, order: str, who: Actor, byte: int, actor: int, clock: int, site: int
    ) -> None:
        kind = "uninitialised" if order == "uninitialised" else "race"
        machine = self.block.machine
        text = _TEXT[order].format(
            byte=self.name(byte + SHARED_BASE),
            other=machine.name_actor(actor, clock, who.origin()[0].block.index) if clock else "",
            place=f" ({machine.sites.site(site)})" if site else "",
        )
        machine.report(kind, text, who)
