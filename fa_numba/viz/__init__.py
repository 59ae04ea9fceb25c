"""Figures of the notebooks and the documentation, one function each.

Every function returns ``(figure, data)``: the matplotlib figure and the numbers it draws, so that
a test can check the picture and a reader can print it. matplotlib is imported when the first
figure is made, never by ``import fa_numba.viz``.
"""

from fa_numba.viz.cost import hbm_traffic, measured_cost, memory_curve, roofline, unit_times
from fa_numba.viz.softmax import online_softmax_trace, rescale_counts, softmax_errors
from fa_numba.viz.tiles import loop_order, mask_tiles

__all__ = [
    "hbm_traffic",
    "loop_order",
    "mask_tiles",
    "measured_cost",
    "memory_curve",
    "online_softmax_trace",
    "rescale_counts",
    "roofline",
    "softmax_errors",
    "unit_times",
]
