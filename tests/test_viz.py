"""Figures: the numbers they draw are right, every axis has a label, pyplot keeps nothing."""

import subprocess
import sys

import numpy as np
import pytest

from fa_numba import models, viz
from fa_numba.viz.style import format_bytes
from fa_numba.viz.tiles import MASKED, SKIPPED, UNMASKED

SCORES = np.random.default_rng(5).normal(size=37) * 3


def drawn(figure):
    """Render, and return the axes; a warning of matplotlib is an error here."""
    figure.canvas.draw()
    return figure.axes


def roofline():
    return viz.roofline({"decode": (4e9, 4e9), "prefill": (4e15, 4e12)})


def memory_curve():
    return viz.memory_curve([512, 1024, 2048], nheads=2)


def hbm_traffic():
    return viz.hbm_traffic((1, 2, 2, 300, 300, 64, 64), counted={"fa2": 12345})


def unit_times():
    return viz.unit_times(1e12, 1e9, 1e9)


def measured_cost():
    row = dict.fromkeys(("dense_seconds", "tiled_seconds", "dense_bytes", "tiled_bytes"), 1.0)
    return viz.measured_cost([{"seqlen": 256, **row}, {"seqlen": 512, **row}])


def mask_tiles():
    return viz.mask_tiles(9, 11, 4, 3, window_left=3, window_right=0, sink_token_length=1)


def loop_order():
    return viz.loop_order(9, 11, 4, 3)


def online_softmax_trace():
    return viz.online_softmax_trace(SCORES, 8)


def rescale_counts():
    return viz.rescale_counts({"random": SCORES.reshape(1, -1)}, 8, [0, 2, 8])


def softmax_errors():
    return viz.softmax_errors([1, 10, 100], {"naive": [1e-3, 2e-3, np.nan], "safe": [1e-3] * 3})


FIGURES = [
    roofline,
    memory_curve,
    hbm_traffic,
    unit_times,
    measured_cost,
    mask_tiles,
    loop_order,
    online_softmax_trace,
    rescale_counts,
    softmax_errors,
]


def test_every_public_figure_is_tested():
    assert sorted(make.__name__ for make in FIGURES) == viz.__all__


@pytest.mark.parametrize("make", FIGURES)
def test_axes_are_labelled_and_titled(make):
    figure, data = make()
    assert data
    axes = drawn(figure)
    assert axes[0].get_title(loc="left")
    assert axes[-1].get_xlabel()
    assert axes[0].get_ylabel() or make is hbm_traffic  # its y axis names the algorithms


def test_figures_leave_nothing_in_pyplot_and_the_style_outside_untouched():
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    before = dict(mpl.rcParams)
    roofline()
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


def test_importing_viz_does_not_import_matplotlib():
    code = "import sys, fa_numba.viz; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_roofline_is_the_lower_of_the_two_roofs():
    _, data = roofline()
    chip = models.CHIPS["H200"]
    at = np.searchsorted(data["intensity"], chip.ridge)
    roof = data["roof"]["H200"]
    np.testing.assert_allclose(roof[:at], data["intensity"][:at] * chip.hbm_bandwidth)
    assert (roof[at:] == chip.tensor_flops).all()
    assert data["ridge"]["H200"] == pytest.approx(206, abs=1)
    decode, prefill = data["points"]["decode"], data["points"]["prefill"]
    assert decode["intensity"] == 1
    assert decode["attainable"]["H200"] == pytest.approx(chip.hbm_bandwidth)
    assert prefill["attainable"]["H200"] == pytest.approx(chip.tensor_flops)


def test_memory_curve_draws_the_models_numbers():
    figure, data = memory_curve()
    assert data["standard"].tolist() == [8 * n * n for n in (512, 1024, 2048)]
    assert np.diff(data["tiled"]).tolist() == [2 * 4 * 512, 2 * 4 * 1024]
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), data["standard"])


def test_hbm_traffic_bars_add_up_to_the_model_and_show_what_was_counted():
    figure, data = hbm_traffic()
    for algorithm in ("standard", "fa1", "fa2", "minimal"):
        total = models.attention_hbm_bytes(
            1, 2, 2, 300, 300, 64, 64, bytes_per_element=2, algorithm=algorithm
        )
        assert sum(data[algorithm].values()) == total
    assert data["counted"] == {"fa2": 12345}
    assert figure.axes[0].lines[0].get_xdata() == [12345]
    assert data["minimal"]["S and P"] == 0 < data["standard"]["S and P"]


def test_unit_times_are_seconds_of_each_unit():
    _, data = unit_times()
    chip = models.CHIPS["A100"]
    assert data["A100"] == {
        "tensor": 1e12 / chip.tensor_flops,
        "mufu": 1e9 / chip.exp_rate,
        "hbm": 1e9 / chip.hbm_bandwidth,
    }


@pytest.mark.parametrize("mask", [(-1, -1, 0), (-1, 0, 0), (3, 0, 2), (0, 2, 0), (2, 0, 9)])
@pytest.mark.parametrize("lengths", [(9, 11), (11, 5), (4, 12)])
def test_mask_tiles_colours_each_tile_by_what_is_in_it(mask, lengths):
    left, right, sink = mask
    figure, data = viz.mask_tiles(
        *lengths, 4, 3, window_left=left, window_right=right, sink_token_length=sink
    )
    drawn(figure)
    query = np.arange(lengths[0])[:, None] + lengths[1] - lengths[0]
    key = np.arange(lengths[1])
    allowed = np.ones(lengths, dtype=bool)
    if right >= 0:
        allowed &= key <= query + right
    if left >= 0:
        allowed &= (key >= query - left) | (key < sink)
    np.testing.assert_array_equal(data["allowed"], allowed)
    for (m, n), state in np.ndenumerate(data["state"]):
        tile = allowed[4 * m : 4 * m + 4, 3 * n : 3 * n + 3]
        assert (state == SKIPPED) == (not tile.any())
        is_whole = bool(tile.all()) and tile.shape[1] == 3
        assert is_whole or state != UNMASKED
        # A tile of sinks is masked even if it is whole: it is not in the window's run of tiles.
        assert not is_whole or state == UNMASKED or sink > 0
    assert set(np.unique(data["state"])) <= {SKIPPED, MASKED, UNMASKED}


def test_loop_orders_visit_the_same_tiles_columns_first_and_rows_first():
    _, data = viz.loop_order(12, 12, 4, 4, window_right=0)
    assert data["fa1"].tolist() == [[0, -1, -1], [1, 3, -1], [2, 4, 5]]
    assert data["fa2"].tolist() == [[0, -1, -1], [2, 1, -1], [5, 4, 3]]


def test_the_trace_ends_at_the_dense_logsumexp():
    _, data = online_softmax_trace()
    assert data["lse"] == pytest.approx(np.log(np.exp(SCORES).sum()), rel=1e-12)
    tops = [SCORES[: start + 8].max() for start in range(0, 37, 8)]
    np.testing.assert_allclose(data["row_max"], tops)
    np.testing.assert_allclose(data["row_scale"][1:], np.exp(-np.diff(tops)))
    assert data["row_max"][-1] + np.log(data["row_sum"][-1]) == pytest.approx(data["lse"])


def test_the_trace_takes_masked_keys_and_an_empty_row():
    masked = SCORES.copy()
    masked[:16] = -np.inf
    figure, data = viz.online_softmax_trace(masked, 8)
    drawn(figure)
    assert data["row_sum"][:2].tolist() == [0, 0]
    assert data["lse"] == pytest.approx(np.log(np.exp(SCORES[16:]).sum()))
    figure, data = viz.online_softmax_trace(np.full(9, -np.inf), 4)
    drawn(figure)
    assert data["lse"] == -np.inf


def test_a_threshold_removes_rescales_and_lets_p_grow_to_its_bound():
    rows = np.array([[0.0, 1.0, 0.5, 3.0, 9.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    _, data = viz.rescale_counts({"two rows": rows}, 1, [0, 2, 20])
    assert data["updates"]["two rows"] == 8
    # Rises of the first row are 1, 2 and 6 (natural): 1.4, 2.9 and 8.7 in units of log 2.
    assert data["rescaled"]["two rows"].tolist() == [3, 2, 0]
    largest = data["largest_p"]["two rows"]
    np.testing.assert_allclose(largest, [1, np.e, np.exp(9)])
    assert (largest <= np.exp2([0, 2, 20])).all()


def test_errors_that_are_not_numbers_are_drawn_as_crosses():
    figure, data = softmax_errors()
    assert data["broken"]["naive"].tolist() == [False, False, True]
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [line.get_xdata().tolist() for line in crosses] == [[100]]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (2**20, "1 MiB"), (2**41, "2 TiB")]
)
def test_bytes_are_written_in_binary_units(value, text):
    assert format_bytes(value) == text
