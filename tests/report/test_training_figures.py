"""Figures of what a probe read, of a spectrum, of method state and of the focal landscape."""

import math

import numpy as np
import pytest
import torch

from calibrant import Predictions, report
from calibrant.calibrators import FocalTemperatureScaling
from calibrant.curvature.correlation import correlation
from calibrant.curvature.spectrum import Density
from calibrant.report import margin_figure, save, scatter_figure, sharpness_figure, spectrum_figure
from calibrant.report.figures.focal_landscape import Landscape
from calibrant.report.readings import gamma_state, multiplier_state

FIGURES = [sharpness_figure, margin_figure, scatter_figure]


def reading(step: int, lr: float = 0.05) -> dict[str, float]:
    """A training that gets sharper up to the edge, and more confident."""
    part = step / 3000
    sharpness = 2 / lr * min(1.0, 0.1 + 2 * part) * (1 + 0.05 * math.sin(step))
    spread = {q: -1 + 12 * part + (q - 50) / 10 for q in (5, 25, 50, 75, 95)}
    return {
        "step": step,
        "lr": lr,
        "edge": 2 / lr,
        "train_ece": 0.1 * math.exp(-2 * part) + 0.01 * abs(math.cos(step)),
        "test_ece": 0.05 + 0.1 * part + 0.01 * math.sin(step),
        "train_log_tail": 1 - 6 * part,
        "test_log_tail": 1 + part,
        "margin_0": -8 + 4 * part,
        **{f"margin_{quantile}": value for quantile, value in spread.items()},
        "gauss_newton": sharpness,
        "hessian": sharpness + 0.5,
        "batch_sharpness": 1.2 * sharpness,
        "batch_sharpness_error": 0.1 * sharpness,
    }


ROWS = [reading(step) for step in range(0, 3000, 100)]


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def written(figure):
    return " ".join(text.get_text() for axes in figure.axes for text in axes.texts)


def without(*names):
    return [{key: value for key, value in row.items() if key not in names} for row in ROWS]


def shows(line, name):
    np.testing.assert_allclose(line.get_ydata(), [row[name] for row in ROWS])


def test_sharpness_has_a_scale_of_its_own_with_the_edge(assert_clean_layout):
    figure = sharpness_figure(ROWS, title="a small network")
    left, right = figure.axes
    names = ("train_ece", "test_ece", "hessian", "gauss_newton", "batch_sharpness", "edge")
    for line, name in zip((*left.lines, *right.lines), names, strict=True):
        shows(line, name)
    assert right.lines[-1].get_linestyle() == "--"
    assert right.get_ylim()[1] > 48
    assert labels(figure)[-1] == "edge of stability"
    assert "30 readings    learning rate 0.05" in written(figure)
    assert_clean_layout(figure)


def test_scales_are_logarithmic_where_numbers_span_powers_of_ten():
    assert [axes.get_yscale() for axes in sharpness_figure(ROWS).axes] == ["linear", "linear"]
    rows = [{"step": i, "train_ece": 10.0**-i, "hessian": 3.0 + i} for i in range(4)]
    assert [axes.get_yscale() for axes in sharpness_figure(rows).axes] == ["log", "linear"]
    # Zero and less has no logarithm.
    rows[0]["train_ece"] = 0.0
    assert sharpness_figure(rows).axes[0].get_yscale() == "linear"
    assert scatter_figure(rows, against="hessian").axes[0].get_ylim()[0] < 0


def test_an_edge_far_above_is_left_out_and_one_that_moves_is_drawn_where_it_is():
    figure = sharpness_figure([{**row, "edge": 1e6} for row in ROWS])
    assert "edge of stability" not in labels(figure)
    assert figure.axes[1].get_ylim()[1] < 100
    moving = [{**row, "edge": 40.0 * 2**place} for place, row in enumerate(ROWS)]
    figure = sharpness_figure(moving)
    assert "edge of stability" in labels(figure)
    assert figure.axes[1].get_ylim()[1] < 1e4


def test_margins_are_bands_around_their_median_above_their_tail(assert_clean_layout):
    figure = margin_figure(ROWS, title="a small network")
    upper, lower = figure.axes
    wide, narrow = (band.get_paths()[0].get_extents() for band in upper.collections)
    assert (wide.y0, wide.y1) == pytest.approx((ROWS[0]["margin_5"], ROWS[-1]["margin_95"]))
    assert (narrow.y0, narrow.y1) == pytest.approx((ROWS[0]["margin_25"], ROWS[-1]["margin_75"]))
    median, smallest, zero = upper.lines
    shows(median, "margin_50")
    shows(smallest, "margin_0")
    assert zero.get_ydata() == [0, 0]
    shows(lower.lines[0], "train_log_tail")
    assert len(lower.lines) == 2
    assert_clean_layout(figure)


def test_points_are_coloured_by_step_and_correlations_are_written_above(assert_clean_layout):
    figure = scatter_figure(ROWS, title="a small network")
    for axes, name in zip(figure.axes, ("train_ece", "test_ece"), strict=False):
        (points,) = axes.collections
        pairs = np.array([[row["gauss_newton"], row[name]] for row in ROWS])
        np.testing.assert_allclose(points.get_offsets(), pairs)
        np.testing.assert_allclose(points.get_array(), [row["step"] for row in ROWS])
        (text,) = axes.texts
        for kind in ("pearson", "spearman"):
            bar = correlation(*pairs.T, kind=kind)
            shown = f"{kind.title()} {bar.value:.2f} [{bar.low:.2f}, {bar.high:.2f}]"
            assert shown in text.get_text()
    assert_clean_layout(figure)


def test_several_trainings_have_axes_with_the_same_scales(assert_clean_layout):
    runs = {
        f"sgd, learning rate {lr:g}": [reading(100 * i, lr) for i in range(20)]
        for lr in (0.4, 0.2, 0.1, 0.05)
    }
    for figure in (sharpness_figure(runs, title="four"), margin_figure(runs)):
        assert len(figure.axes) == 2 * len(runs)
        titles = [axes.get_title("left") for axes in figure.axes]
        assert [title for title in titles if title] == list(runs)
        assert len({axes.get_ylim() for axes in figure.axes}) == 2
        assert len(labels(figure)) == 6
        assert_clean_layout(figure)


@pytest.mark.parametrize("count", [2, 16])
def test_correlations_of_several_trainings_are_in_the_legend(count, assert_clean_layout):
    runs = {f"a training with a long name, seed {seed}": ROWS[seed:] for seed in range(count)}
    figure = scatter_figure(runs, title="many")
    assert len(labels(figure)) == count
    bar = correlation(*np.array([[row["gauss_newton"], row["train_ece"]] for row in ROWS]).T)
    assert labels(figure)[0].startswith(f"ECE, training: r {bar.value:.2f} [{bar.low:.2f}")
    assert "mean rho" in written(figure)
    assert_clean_layout(figure)


@pytest.mark.parametrize("draw", FIGURES)
def test_one_reading_is_enough_and_missing_ones_leave_gaps(draw, tmp_path):
    figure = draw([reading(300)])
    assert save(figure, tmp_path / "one.png").stat().st_size > 5_000
    assert ("fewer than 3 readings" in written(figure)) == (draw is scatter_figure)
    gaps = [{**row, "train_ece": math.nan, "margin_5": math.nan} for row in ROWS[:3]]
    rows = [*gaps, {"step": 300}, *ROWS[4:]]
    for given in (rows, {"gaps": rows, "empty": [], "nothing": [{"step": 0}], "more": ROWS}):
        save(draw(given), tmp_path / "gaps.png")


def test_what_was_not_read_is_not_drawn():
    figure = sharpness_figure(without("train_ece", "test_ece", "edge", "hessian"))
    assert len(figure.axes) == 1
    assert labels(figure) == ["Gauss-Newton", "batch sharpness"]
    figure = sharpness_figure(without("gauss_newton", "hessian", "batch_sharpness"))
    assert labels(figure) == ["ECE, training", "ECE, test"]
    assert len(scatter_figure(without("test_ece")).axes) == 2  # one scatter, one scale of colours
    assert labels(margin_figure(without("test_log_tail")))[-1] == "log Q, training"
    assert sharpness_figure(without("step")).axes[0].get_xlabel() == "reading"


@pytest.mark.parametrize(
    ("draw", "rows", "message"),
    [
        (sharpness_figure, [{"step": 0}], r"one of \['train_ece', .*'batch_sharpness'\], got \['s"),
        (sharpness_figure, {}, r"need readings of a probe .* got \[\]"),
        (margin_figure, [{"margin_0": math.nan}], r"one of \['margin_0'"),
        (scatter_figure, [{"train_ece": 0.1}], r"one of \['gauss_newton'\], got \['train_ece'\]"),
        (scatter_figure, [{"gauss_newton": 0.1}], "both gauss_newton and one of .*test_ece"),
    ],
)
def test_what_is_missing_is_named_if_nothing_can_be_drawn(draw, rows, message):
    with pytest.raises(ValueError, match=message):
        draw(rows)


def density(values, weights):
    values, weights = (torch.tensor(each).double() for each in (values, weights))
    return Density(values, weights / weights.sum())


def bulk(*outliers):
    return density([*np.linspace(-0.05, 0.05, 40), *outliers], [1.0] * 40 + [1e-4] * len(outliers))


def test_a_spectrum_shows_its_largest_eigenvalue_and_both_signs(assert_clean_layout):
    found = bulk(1.0, 5.0, 12.0)
    figure = spectrum_figure(found, title="a small network")
    whole, close = figure.axes
    assert whole.get_yscale() == "log"
    assert whole.lines[-1].get_xdata() == [12, 12]
    # The density where one eigenvalue stands alone, in a curve of width a 150th of the range.
    height = float(found.weights[-1]) / (12.05 / 150 * math.sqrt(2 * math.pi))
    assert np.interp(12, *whole.lines[-2].get_data()) == pytest.approx(height, rel=1e-2)
    assert whole.get_ylim()[0] < height
    # Around zero, what is below and above by more than a width of the second axes.
    assert close.get_xlim() == pytest.approx((-0.075, 0.075))
    assert labels(figure)[0] == "below zero: 45 %"
    assert labels(figure)[1:] == ["within a width of zero: 10 %", "above zero: 45 %", "largest"]
    assert_clean_layout(figure)


def test_a_spectrum_without_small_negative_eigenvalues_has_one_axes():
    positive = density([0.0, 1.0, 3.0], [0.8, 0.1, 0.1])
    for found in (positive, bulk(0.1), density([0.5], [1.0])):
        assert len(spectrum_figure(found).axes) == 1
    assert not any("below" in label for label in labels(spectrum_figure(positive)))
    assert "width 0.3" in written(spectrum_figure(positive, width=0.3))
    with pytest.raises(ValueError, match="width must be positive"):
        spectrum_figure(positive, width=0.0)


BINS = 15
MULTIPLIERS = [
    {"epoch": epoch, "multipliers": [0.1 * epoch, 0.2 * epoch, 0.5 * epoch]} for epoch in range(4)
]


def gamma_row(epoch: int) -> dict:
    middle = 1 + 3 * (1 - np.exp(-epoch / 5))
    row = {"gamma_mean": middle, "gamma_std": 0.2, "gamma_q50": middle}
    row |= {"gamma_q05": middle - 0.3, "gamma_q95": middle + 0.4}
    row |= {"gamma_right": np.linspace(3, 4.5, BINS).tolist()}
    row |= {"gamma_wrong": np.linspace(4, 4.8, BINS).tolist()}
    counts = [0.0, 5.0, *[40.0] * (BINS - 2)]
    return row | {"count_right": counts, "count_wrong": counts}


def test_gamma_is_drawn_along_training_and_by_confidence(assert_clean_layout):
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
    # A line without a number is not in the legend.
    few = {**gamma_row(0), "count_wrong": [9] * BINS}
    assert labels(report.gamma_figure([few]))[1:] == ["right"]


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


@pytest.mark.parametrize("counts", [[700, 90, 35], [40, 20, 10], [5000, 500, 5]])
def test_frequencies_can_be_read_whatever_their_range(counts, assert_clean_layout):
    rows = [{**row, "rho": [1.0, 1.2, 1.44]} for row in MULTIPLIERS]
    assert_clean_layout(report.multiplier_figure(rows, counts, title="CALS-ALM"))


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


def test_the_landscape_marks_the_fitted_parameters_on_the_grid_that_is_given():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 4)) * 4
    predictions = Predictions(logits, (logits / 2 + generator.gumbel(size=(300, 4))).argmax(1))
    axes = report.focal_landscape_figure(predictions, title="net").axes[0]
    fitted = FocalTemperatureScaling.fit(predictions)
    point = next(line for line in axes.lines if line.get_marker() == "o")
    assert point.get_xydata().ravel() == pytest.approx([fitted.temperature, fitted.gamma])
    assert any(f"T = {fitted.temperature:.2f}" in text.get_text() for text in axes.texts)
    figure = report.focal_landscape_figure(
        predictions, criterion="ece", gammas=[2.0, 0.0, 1.0], temperatures=[1.0, 2.0, 3.0, 4.0]
    )
    assert figure.axes[0].get_ylim() == (0.0, 2.0)


def test_the_ridge_is_the_vertex_of_a_parabola_in_the_logarithm():
    temperatures = np.geomspace(0.5, 8, 9)
    values = np.stack([(np.log(temperatures) - np.log(t)) ** 2 for t in (1.3, 2.9)])
    fitted = FocalTemperatureScaling(temperature=2.0, gamma=0.0, classes=4)
    found = Landscape(fitted, np.array([0.0, 1.0]), temperatures, values, 0.0, 1.0)
    np.testing.assert_allclose(found.ridge, [1.3, 2.9], rtol=1e-9)
