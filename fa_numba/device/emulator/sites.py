"""Where in a kernel something happens.

Every access to memory carries its place, so a place must cost next to nothing: it is a number, made
from the position in the byte code of the frame that called the op. File, line and text are looked
up when a report asks for them.
"""

import linecache
import os
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["Site", "Sites", "kernel_frame"]

_DEVICE_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep

# Whether a source file is part of fa_numba.device, by file name.
_inside: dict[str, bool] = {}


@dataclass(frozen=True, slots=True)
class Site:
    """A line of a kernel and the op that it calls.

    Attributes
    ----------
    op : str
        Name of the op, or ``""``.
    file : str
        Path of the source file.
    line : int
        Line number, 0 if unknown.
    source : str
        Text of the line.
    """

    op: str
    file: str
    line: int
    source: str

    def __str__(self) -> str:
        """Return op, file, line and text."""
        place = f"{os.path.basename(self.file)}:{self.line}: {self.source}"
        return f"{self.op} at {place}" if self.op else f"at {place}"


def kernel_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame from `frame` outwards that is not part of fa_numba.device."""
    while frame is not None:
        name = frame.f_code.co_filename
        inside = _inside.get(name)
        if inside is None:
            inside = _inside[name] = os.path.abspath(name).startswith(_DEVICE_FOLDER)
        if not inside:
            break
        frame = frame.f_back
    return frame


def _line_of(code: CodeType, offset: int) -> int:
    """Return the source line of an instruction."""
    for start, stop, line in code.co_lines():
        if start <= offset < stop and line is not None:
            return line
    return code.co_firstlineno


class Sites:
    """Numbers for places in kernels. 0 is nowhere."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, Any], int] = {}
        # The code objects are kept here, so the ids that key the dictionary stay theirs.
        self._places: list[tuple[str, CodeType, int]] = [("", kernel_frame.__code__, 0)]
        self._sites: dict[int, Site] = {0: Site("", "", 0, "")}

    def number(self, frame: FrameType | None, op: Any) -> int:
        """Return the number of the place where `frame` calls `op`.

        Parameters
        ----------
        frame : frame or None
            The caller of the op; of the outermost one, if an op calls others.
        op : object or None
            The op.

        Returns
        -------
        int
            The same for every call of one op at one place.
        """
        if frame is None:
            return 0
        code, offset = frame.f_code, frame.f_lasti
        number = self._numbers.get((id(code), offset, op))
        if number is not None:
            return number
        outside = kernel_frame(frame)
        if outside is not frame:
            return self.number(outside, op)
        number = self._numbers[id(code), offset, op] = len(self._places)
        self._places.append(("" if op is None else op.name, code, offset))
        return number

    def site(self, number: int) -> Site:
        """Return what a number stands for."""
        known = self._sites.get(number)
        if known is None:
            op, code, offset = self._places[number]
            line = _line_of(code, offset)
            text = linecache.getline(code.co_filename, line).strip()
            known = self._sites[number] = Site(op, code.co_filename, line, text)
        return known
