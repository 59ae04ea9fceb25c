"""Global memory: NumPy arrays under 64-bit addresses that do not exist.

Every array that a launch is given gets a *window* of addresses of its own, far from the next, so an
access that runs over an array's end meets nothing. A strided view's window has gaps: bytes between
its rows belong to the array behind the view, not to the view, and touching them is out of bounds.
Two views of the same memory have two windows, but one record of who used which byte.
"""

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fa_numba.device.emulator.clocks import Actor, Clocks
from fa_numba.device.emulator.hazards import Hazard
from fa_numba.device.emulator.shadow import Shadow

if TYPE_CHECKING:
    from fa_numba.device.emulator.machine import Machine
    from fa_numba.device.emulator.thread import Thread

__all__ = ["GlobalMemory", "Window"]

Bytes = npt.NDArray[np.uint8]

FIRST_ADDRESS = 0x7F00_0000_0000
GUARD_BYTES = 1 << 20

# Addresses agree with those of the arrays in their low bits: what is aligned to 16 bytes stays so.
_KEPT_BITS = 0xFF

_TEXT = {
    "uninitialised": "reads {byte}, which nothing has written",
    "write-read": "reads {byte}, written by {other}{place} with nothing to order the two",
    "read-write": "overwrites {byte}, read by {other}{place} with nothing to order the two",
    "write-write": "writes {byte}, written by {other}{place} too, with nothing to order the two",
}
_KIND = {"uninitialised": "uninitialised", "write-write": "double-write"}


class _Raw:
    """Memory as NumPy's array interface describes it; keeps the owner alive."""

    def __init__(self, owner: Any, address: int, size: int, *, readonly: bool) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, readonly),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


class Window:
    """The addresses of one array.

    Attributes
    ----------
    name : str
        The parameter that it was passed as.
    role : str
        ``"in"``, ``"out"`` or ``"inout"``.
    start, stop : int
        First address and end.
    address : int
        Of the array's element 0: what the kernel gets.
    bytes : ndarray
        The memory from the array's lowest byte to its highest.
    gaps : bytearray or None
        1 for bytes that are not the array's; None if there are none.
    shadow : Shadow or None
        None where nothing is written.
    shadow_offset : int
        Where the window begins in the shadow, which may span more than one window.
    """

    def __init__(self, name: str, array: npt.NDArray[Any], role: str, start: int) -> None:
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
        self.name = name
        self.role = role
        self.array = array
        self.real_start = low
        self.start = start + (low & _KEPT_BITS)
        self.stop = self.start + high - low
        self.address = self.start + (array.ctypes.data - low if array.size else 0)
        raw = _Raw(array, low, high - low, readonly=not array.flags.writeable)
        self.bytes: Bytes = np.asarray(raw) if array.size else np.empty(0, np.uint8)
        self.gaps = _gaps(array, high - low)
        self.shadow: Shadow | None = None
        self.shadow_offset = 0

    def describe(self, offset: int) -> str:
        """Name a byte in a report."""
        return f"byte {offset} of argument {self.name!r}"

    def use_async(self, who: Actor, lo: int, hi: int, site: int, *, write: bool) -> None:
        """Announce that an asynchronous operation uses the addresses [lo, hi)."""
        if self.shadow is not None:
            shift = self.shadow_offset - self.start
            use = self.shadow.write if write else self.shadow.read
            use(who, lo + shift, hi + shift, site)

    def unwritten(self) -> npt.NDArray[np.intp]:
        """Return the offsets of the array's bytes that nothing has written."""
        assert self.shadow is not None
        stop = self.shadow_offset + len(self.bytes)
        missing = self.shadow.unwritten(self.shadow_offset, stop)
        if self.gaps is not None:
            missing &= np.frombuffer(self.gaps, np.uint8) == 0
        return np.flatnonzero(missing)


class GlobalMemory:
    """The arrays of one launch.

    Parameters
    ----------
    machine : Machine
        Takes the reports.
    """

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.windows: list[Window] = []
        self._starts: list[int] = []
        self._shadows: list[Shadow] = []
        self._next = FIRST_ADDRESS

    def add(self, name: str, array: npt.NDArray[Any], role: str) -> int:
        """Give an array addresses, and return that of its element 0."""
        if role != "in" and not array.flags.writeable:
            raise ValueError(f"{name} is read-only; the kernel writes to it")
        window = Window(name, array, role, self._next)
        self.windows.append(window)
        self._starts.append(window.start)
        self._next = -(-(window.stop + GUARD_BYTES) // GUARD_BYTES) * GUARD_BYTES
        return window.address

    def start(self, clocks: Clocks) -> None:
        """Make the shadows, one for all windows whose memory overlaps, if any is written."""
        groups: list[tuple[int, list[Window]]] = []
        for window in sorted(self.windows, key=lambda w: w.real_start):
            stop = window.real_start + len(window.bytes)
            if groups and window.real_start < groups[-1][0]:
                groups[-1] = (max(groups[-1][0], stop), [*groups[-1][1], window])
            else:
                groups.append((stop, [window]))
        for stop, windows in groups:
            if all(window.role == "in" for window in windows):
                continue
            first = windows[0].real_start
            shadow = Shadow(stop - first, clocks, _Reporter(self, windows))
            self._shadows.append(shadow)
            for window in windows:
                window.shadow = shadow
                window.shadow_offset = window.real_start - first
            for window in windows:
                if window.role != "out":
                    offset = window.shadow_offset
                    shadow.initialise(offset, offset + len(window.bytes))

    def set_clocks(self, clocks: Clocks) -> None:
        """Go on with the next block."""
        for shadow in self._shadows:
            shadow.change_clocks(clocks)

    def read(self, thread: "Thread", address: int, nbytes: int, align: int) -> Bytes:
        """Return a copy of bytes, checked."""
        window = self._find(thread, address, nbytes, align, "reads")
        if isinstance(window, Hazard):
            thread.give_up(window)
        lo = address - window.start
        if window.shadow is not None:
            first = lo + window.shadow_offset
            window.shadow.read(thread, first, first + nbytes, thread.site())
        return window.bytes[lo : lo + nbytes].copy()

    def write(self, thread: "Thread", address: int, data: Bytes, align: int) -> None:
        """Write bytes, checked. A write where none may be is reported and dropped."""
        nbytes = len(data)
        window = self._find(thread, address, nbytes, align, "writes")
        if isinstance(window, Hazard):
            return
        lo = address - window.start
        if window.role == "in":
            text = f"writes {nbytes} bytes at {window.describe(lo)}, which was passed as input"
            thread.hazard("read-only", text)
            return
        assert window.shadow is not None
        first = lo + window.shadow_offset
        window.shadow.write(thread, first, first + nbytes, thread.site())
        window.bytes[lo : lo + nbytes] = data

    def window_of(self, address: int) -> Window | None:
        """Return the window that an address lies in."""
        i = bisect_right(self._starts, address) - 1
        if i >= 0 and address < self.windows[i].stop:
            return self.windows[i]
        return None

    def _find(
        self, thread: "Thread", address: int, nbytes: int, align: int, verb: str
    ) -> Window | Hazard:
        i = bisect_right(self._starts, address) - 1
        window = self.windows[i] if i >= 0 else None
        if window is None or address + nbytes > window.stop:
            return thread.hazard("out-of-bounds", self._beyond(address, nbytes, verb, window))
        gaps = window.gaps
        if gaps is not None:
            gap = gaps.find(1, address - window.start, address + nbytes - window.start)
            if gap >= 0:
                text = f"{verb} {window.describe(gap)}, which lies between the elements of the view"
                return thread.hazard("out-of-bounds", text)
        if address % align:
            what = window.describe(address - window.start)
            text = f"{verb} {nbytes} bytes at {what}; its address is no multiple of {align}"
            thread.hazard("misaligned", text)
        return window

    def _beyond(self, address: int, nbytes: int, verb: str, below: Window | None) -> str:
        text = f"{verb} {nbytes} bytes at {address:#x}, outside every argument"
        near = [w for w in self.windows if 0 < w.start - address <= GUARD_BYTES // 2]
        if below is not None and address - below.stop < GUARD_BYTES // 2:
            size = len(below.bytes)
            text += f": {address - below.start} bytes into {below.name!r}, which has {size}"
        elif near:
            text += f": {near[0].start - address} bytes before {near[0].name!r}"
        return text


class _Reporter:
    """Turns conflicts in one shadow into hazards that name the argument."""

    def __init__(self, memory: GlobalMemory, windows: list[Window]) -> None:
        self.memory = memory
        self.windows = windows

    def __call__(
        self, order: str, who: Actor, byte: int, actor: int, clock: int, site: int
    ) -> None:
        """Report a conflict; see `shadow.Conflict`."""
        machine = self.memory.machine
        window = next(w for w in self.windows if 0 <= byte - w.shadow_offset < max(1, len(w.bytes)))
        text = _TEXT[order].format(
            byte=window.describe(byte - window.shadow_offset),
            other=machine.name_actor(actor, clock, who.origin()[0].block.index) if clock else "",
            place=f" ({machine.sites.site(site)})" if site else "",
        )
        machine.report(_KIND.get(order, "race"), text, who)


def _gaps(array: npt.NDArray[Any], extent: int) -> bytearray | None:
    """Return which of `extent` bytes belong to no element, or None if all belong to one."""
    if array.nbytes == extent and 0 not in array.strides:
        order = sorted(range(array.ndim), key=lambda axis: abs(array.strides[axis]))
        if array.transpose(order[::-1]).flags.c_contiguous:
            return None
    gaps = bytearray(b"\1") * extent
    if array.size:
        first = sum(min(0, s * (n - 1)) for s, n in zip(array.strides, array.shape, strict=True))
        view = np.lib.stride_tricks.as_strided(
            np.frombuffer(gaps, np.uint8)[-first:],
            shape=(*array.shape, array.itemsize),
            strides=(*array.strides, 1),
        )
        view[...] = 0
    return gaps if 1 in gaps else None
