"""What ran when, as a file for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Time is the virtual clock, in cycles shown as microseconds. It knows the issue costs that ops
declare and who waits for whom. It is good for order and overlap, not for speed.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fa_numba.device.emulator.thread import Thread

__all__ = ["TRACKS", "Trace"]

TRACKS = ("warps", "threads")

Index = tuple[int, int, int]


class Trace:
    """Slices of time, by block and track.

    Parameters
    ----------
    tracks : str
        ``"warps"``: a slice spans the same call in all lanes of a warp; ``"threads"``: one track
        for each thread.
    """

    def __init__(self, tracks: str = "warps") -> None:
        if tracks not in TRACKS:
            raise ValueError(f"trace is {tracks!r}; accepted are False, True, 'warps', 'threads'")
        self.tracks = tracks
        # Begin and end, by launch, block, track, op, place and occurrence there.
        self._slices: dict[tuple[int, Index, int, str, int, int], list[float]] = {}
        self._occurrences: dict[tuple[int, Index, int, int], int] = {}
        self._places: dict[int, str] = {}
        self._async: list[tuple[int, Index, str, str, float, float]] = []
        self._launches: list[str] = []

    def begin_launch(self, kernel: str) -> None:
        """Begin a new group of blocks."""
        self._launches.append(kernel)
        self._occurrences.clear()

    def add(self, thread: "Thread", op: str, place: int, begin: float, end: float) -> None:
        """Add an op of a thread."""
        launch, block = len(self._launches) - 1, thread.block.index
        counter = (launch, block, thread.tid, place)
        occurrence = self._occurrences.get(counter, 0)
        self._occurrences[counter] = occurrence + 1
        track = thread.warp if self.tracks == "warps" else thread.tid
        key = (launch, block, track, op, place, occurrence)
        known = self._slices.get(key)
        if known is None:
            self._slices[key] = [begin, end]
        else:
            known[0] = min(known[0], begin)
            known[1] = max(known[1], end)
        if place not in self._places:
            self._places[place] = str(thread.machine.sites.site(place))

    def add_async(self, block: Index, engine: str, name: str, begin: float, cycles: float) -> None:
        """Add an operation of an engine."""
        launch = len(self._launches) - 1
        self._async.append((launch, block, engine, name, begin, begin + cycles))

    def events(self) -> list[dict[str, Any]]:
        """Return the events in Chrome's format: processes are blocks, threads are tracks."""
        what = self.tracks.removesuffix("s")
        slices: list[tuple[int, Index, str, str, float, float, dict[str, Any]]] = [
            (
                launch,
                block,
                f"{what} {track}",
                op,
                span[0],
                span[1],
                {"at": self._places[place], "nth": nth},
            )
            for (launch, block, track, op, place, nth), span in self._slices.items()
        ]
        slices += [(*entry, {}) for entry in self._async]
        events: list[dict[str, Any]] = []
        processes: dict[tuple[int, Index], int] = {}
        tracks: dict[tuple[int, str], int] = {}
        for launch, block, track, name, begin, end, details in slices:
            process = processes.setdefault((launch, block), len(processes) + 1)
            number = tracks.setdefault((process, track), len(tracks) + 1)
            where = {"pid": process, "tid": number}
            span = {"ph": "X", "ts": begin, "dur": end - begin}
            events.append({"name": name, **where, **span, "args": details})
        for (launch, block), process in processes.items():
            text = f"{self._launches[launch]}, block {block}"
            label = {"ph": "M", "pid": process, "tid": 0, "args": {"name": text}}
            events.append({"name": "process_name", **label})
        for (process, track), number in tracks.items():
            label = {"ph": "M", "pid": process, "tid": number, "args": {"name": track}}
            events.append({"name": "thread_name", **label})
        return events

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON."""
        text = json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ns"})
        Path(path).write_text(text, encoding="utf-8")
