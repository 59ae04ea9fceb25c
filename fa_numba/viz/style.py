"""One look for all figures: colours that colour-blind readers can tell apart, quiet axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLORS",
    "bytes_axis",
    "format_bytes",
    "house_style",
    "new_figure",
    "power_of_two_axis",
]

# The palette of Okabe and Ito (2008), safe for the common kinds of colour blindness.
COLORS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermillion": "#D55E00",
    "sky": "#56B4E9",
    "purple": "#CC79A7",
    "yellow": "#F0E442",
    "black": "#000000",
    "grey": "#8A8A8A",
}

_RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.dpi": 110,
    "font.size": 9.5,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.bbox": "tight",
}


Drawing = TypeVar("Drawing", bound=Callable[..., Any])


def house_style(draw: Drawing) -> Drawing:
    """Decorate a figure function: everything inside it is drawn in the house style."""

    @wraps(draw)
    def styled(*args: Any, **kwargs: Any) -> Any:
        import matplotlib as mpl

        with mpl.rc_context(_RC):
            return draw(*args, **kwargs)

    return styled  # type: ignore[return-value]


def new_figure(
    ncols: int = 1, nrows: int = 1, *, width: float = 7.0, height: float = 3.8, **kwargs: Any
) -> tuple[Figure, Any]:
    """Make a figure of `nrows` by `ncols` panels.

    The figure is not registered with pyplot: it shows once in a notebook, as the value of its
    cell, and needs no closing.

    Parameters
    ----------
    ncols, nrows : int
        Panels side by side, and one above the other.
    width, height : float
        Inches.
    **kwargs
        Passed to ``Figure.subplots``.

    Returns
    -------
    (Figure, Axes or array of Axes)
        One Axes for one panel, an array otherwise.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(nrows, ncols, **kwargs)


def power_of_two_axis(axis: Any, values: Any) -> None:
    """Label a logarithmic axis with the given powers of two: 512, 1k, 2k, ..."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    labels = [f"{v // 1024}k" if v >= 1024 and v % 1024 == 0 else str(v) for v in values]
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FixedFormatter(labels))
    axis.set_minor_locator(NullLocator())


def bytes_axis(axis: Any, *, top: float | None = None) -> None:
    """Label an axis that counts bytes with binary units.

    With `top`, the largest value of a linear axis, the ticks are multiples of a power of two.
    """
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    axis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    if top is not None:
        axis.set_major_locator(MultipleLocator(2 ** round(math.log2(top / 5))))


def format_bytes(value: float) -> str:
    """Write a number of bytes with a binary unit: 1536 is ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
