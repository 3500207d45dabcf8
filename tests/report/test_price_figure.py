"""The figure of prices shows every class at its frequency."""

import numpy as np
import pytest

from calibrant.report import price_figure

HISTORY = [
    {"epoch": epoch, "multipliers": [0.1 * epoch, 0.2 * epoch, 0.5 * epoch]} for epoch in range(4)
]


def test_every_class_is_a_line_and_a_point_at_its_frequency():
    figure = price_figure(HISTORY, [900, 90, 9], title="long tail")
    left, right = figure.axes
    drawn = np.array([line.get_ydata() for line in left.lines])
    np.testing.assert_allclose(drawn[:, -1], HISTORY[-1]["multipliers"])
    points = right.collections[0].get_offsets()
    np.testing.assert_allclose(points, [[900, 0.3], [90, 0.6], [9, 1.5]])
    assert right.get_xscale() == "log"


def test_rho_stands_against_the_frequency_in_a_panel_of_its_own_and_titles_are_whole():
    title = "CALS-ALM 5, adjusted: cifar10-LT, crop and flip, seed 0"
    rows = [{**row, "rho": [1.0, 1.2, 1.44]} for row in HISTORY]
    figure = price_figure(rows, [900, 90, 9], title=title)
    left, _, third = figure.axes
    assert left.get_title(loc="left") == title
    points = third.collections[0].get_offsets()
    np.testing.assert_allclose(points, [[900, 1], [90, 1.2], [9, 1.44]])
    assert third.get_xscale() == "log"
    assert third.get_ylim()[1] < 1.6


def test_prices_of_the_rule_are_drawn_too_and_equal_classes_need_no_log_scale():
    figure = price_figure([{"alpha": [0.1, 0.2]}], [50, 50])
    assert figure.axes[1].get_xscale() == "linear"


@pytest.mark.parametrize(
    ("history", "counts", "message"),
    [
        ([], [1], "cals_alm or cals_hr"),
        ([{"epoch": 0, "alpha": 0.1}], [1], "cals_alm or cals_hr"),
        (HISTORY, [1, 2], "counts must hold 3 classes, got 2"),
    ],
)
def test_other_histories_and_counts_are_refused(history, counts, message):
    with pytest.raises(ValueError, match=message):
        price_figure(history, counts)
