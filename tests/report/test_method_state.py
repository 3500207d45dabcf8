"""Figures of method state and of the focal landscape, and the numbers that panels share."""

import numpy as np
import pytest

from calibrant import Predictions, report
from calibrant.calibrators import FocalTemperatureScaling
from calibrant.report.figures.focal_landscape import Landscape
from calibrant.report.readings import gamma_state, multiplier_state

BINS = 15
MULTIPLIERS = [
    {"epoch": epoch, "multipliers": [0.1 * epoch, 0.2 * epoch, 0.5 * epoch]} for epoch in range(4)
]


def gamma_row(epoch: int) -> dict:
    middle = 1 + 3 * (1 - np.exp(-epoch / 5))
    counts = [0.0, 5.0, *[40.0] * (BINS - 2)]
    return {
        "gamma_mean": middle,
        "gamma_std": 0.2,
        "gamma_q05": middle - 0.3,
        "gamma_q50": middle,
        "gamma_q95": middle + 0.4,
        "gamma_right": np.linspace(3, 4.5, BINS).tolist(),
        "gamma_wrong": np.linspace(4, 4.8, BINS).tolist(),
        "count_right": counts,
        "count_wrong": counts,
    }


def test_gamma_is_drawn_along_training_and_by_confidence(assert_clean_layout, tmp_path):
    history = [gamma_row(epoch) for epoch in range(20)]
    figure = report.gamma_figure(history, title="a network of this kind")
    left, right = figure.axes
    (median,) = left.lines
    assert median.get_ydata() == pytest.approx([each["gamma_q50"] for each in history])
    assert median.get_xdata().tolist() == list(range(1, 21))
    correct, wrong = right.lines
    # Bins with fewer than ten examples are left out.
    assert np.isnan(correct.get_ydata()[:2]).all()
    assert correct.get_ydata()[2:] == pytest.approx(np.linspace(3, 4.5, BINS)[2:])
    assert wrong.get_ydata()[2:] == pytest.approx(np.linspace(4, 4.8, BINS)[2:])
    assert any("gamma 3.93" in text.get_text() for text in right.texts)
    assert_clean_layout(figure)
    assert report.save(figure, tmp_path / "gamma.png").stat().st_size > 10_000


def test_a_line_without_a_number_is_not_in_the_legend():
    few = {**gamma_row(0), "count_wrong": [9] * BINS}
    labels = report.gamma_figure([few]).legends[0].get_texts()
    assert [text.get_text() for text in labels][1:] == ["right"]


def test_rho_of_cals_alm_is_part_of_the_shared_numbers():
    state = multiplier_state([{**row, "rho": [1.0, 1.2, 1.44]} for row in MULTIPLIERS])
    assert state.last == {"multiplier": pytest.approx([0.3, 0.6, 1.5]), "rho": [1.0, 1.2, 1.44]}
    assert state.classes == 3
    assert multiplier_state([{"alpha": [0.1, 0.2]}]).name == "penalty weight"
    assert multiplier_state([{"alpha": 0.1}]) is gamma_state([]) is None


def test_every_class_is_a_line_and_a_point_at_its_frequency():
    title = "CALS-ALM 5, adjusted: cifar10-LT, crop and flip, seed 0"
    rows = [{**row, "rho": [1.0, 1.2, 1.44]} for row in MULTIPLIERS]
    left, middle, right = report.multiplier_figure(rows, [900, 90, 9], title=title).axes
    assert left.get_title(loc="left") == title
    drawn = np.array([line.get_ydata() for line in left.lines])
    np.testing.assert_allclose(drawn[:, -1], MULTIPLIERS[-1]["multipliers"])
    for axes, last in ((middle, [0.3, 0.6, 1.5]), (right, [1, 1.2, 1.44])):
        points = axes.collections[0].get_offsets()
        np.testing.assert_allclose(points, np.c_[[900, 90, 9], last])
        assert axes.get_xscale() == "log"
    equal = report.multiplier_figure([{"alpha": [0.1, 0.2]}], [50, 50])
    assert equal.axes[1].get_xscale() == "linear"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: report.gamma_figure([{"epoch": 0}]), "a training with gamma_net, each row with"),
        (lambda: report.gamma_figure([]), "need the history"),
        (lambda: report.multiplier_figure([], [1]), "cals_alm or cals_hr"),
        (lambda: report.multiplier_figure(MULTIPLIERS, [1, 2]), "must hold 3 classes, got 2"),
    ],
)
def test_other_histories_and_counts_are_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.fixture(scope="module")
def predictions() -> Predictions:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 4)) * 4
    return Predictions(logits, (logits / 2 + generator.gumbel(size=(300, 4))).argmax(1))


def test_the_landscape_marks_the_fitted_parameters(predictions):
    axes = report.focal_landscape_figure(predictions, title="net").axes[0]
    fitted = FocalTemperatureScaling.fit(predictions)
    point = next(line for line in axes.lines if line.get_marker() == "o")
    assert point.get_xydata().ravel() == pytest.approx([fitted.temperature, fitted.gamma])
    assert any(f"T = {fitted.temperature:.2f}" in text.get_text() for text in axes.texts)


def test_the_landscape_has_the_grid_that_is_given(predictions):
    figure = report.focal_landscape_figure(
        predictions, criterion="ece", gammas=[2.0, 0.0, 1.0], temperatures=[1.0, 2.0, 3.0, 4.0]
    )
    assert figure.axes[0].get_ylim() == (0.0, 2.0)


def test_the_ridge_is_the_vertex_of_a_parabola_in_the_logarithm():
    temperatures = np.geomspace(0.5, 8, 9)
    values = np.stack([(np.log(temperatures) - np.log(t)) ** 2 for t in (1.3, 2.9)])
    fitted = FocalTemperatureScaling(2.0, 0.0)
    found = Landscape(fitted, np.array([0.0, 1.0]), temperatures, values, 0.0, 1.0)
    np.testing.assert_allclose(found.ridge, [1.3, 2.9], rtol=1e-9)
