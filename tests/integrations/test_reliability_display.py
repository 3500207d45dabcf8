"""The display: its numbers, its labels and what it draws."""

import matplotlib as mpl
import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.naive_bayes import GaussianNB

from calibrant import Predictions, metrics
from calibrant.integrations.sklearn import ReliabilityDisplay
from calibrant.report.reliability_points import wilson

X, Y = make_classification(1200, 8, n_informative=5, n_redundant=3, random_state=0)


@pytest.fixture(autouse=True)
def _no_windows():
    mpl.use("Agg")
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def model(y=Y, kind=GaussianNB):
    return kind().fit(X[:600], y[:600])


def test_of_two_classes_it_draws_the_frequency_of_the_positive_class():
    fitted = model()
    display = ReliabilityDisplay.from_estimator(fitted, X[600:], Y[600:], n_bins=5)
    probs = fitted.predict_proba(X[600:])[:, 1]
    assert display.ece == pytest.approx(
        metrics.binary_ece(Predictions.from_binary(probs, Y[600:], kind="probs"), bins=5)
    )
    # The third bin worked by hand: all bins hold more than 10 examples.
    inside = (probs > 0.4) & (probs <= 0.6)
    x, y = display.line_.get_data()
    assert len(x) == 5
    assert inside.sum() >= 10
    assert (x[2], y[2]) == pytest.approx((probs[inside].mean(), Y[600:][inside].mean()))
    low, high = wilson(np.array([float(Y[600:][inside].sum())]), np.array([float(inside.sum())]))
    band = display.band_.get_paths()[0].vertices
    at = np.isclose(band[:, 0], x[2])
    assert band[at, 1].min() == pytest.approx(low[0])
    assert band[at, 1].max() == pytest.approx(high[0])


def test_it_has_the_attributes_and_labels_of_a_display_of_scikit_learn():
    display = ReliabilityDisplay.from_estimator(model(), X[600:], Y[600:])
    assert display.figure_ is display.ax_.figure
    assert display.line_ in display.ax_.lines
    assert display.pos_label == 1
    assert display.ax_.get_xlabel() == "mean predicted probability of 1"
    assert display.ax_.get_ylabel() == "frequency of 1"
    labels = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert labels == ["calibrated", f"GaussianNB, ECE {display.ece:.3f}"]
    assert "95 % intervals" in display.ax_.get_title(loc="left")


def test_several_displays_share_axes_and_differ_in_colour():
    first = ReliabilityDisplay.from_estimator(model(), X[600:], Y[600:], name="a")
    other = model(kind=LogisticRegression)
    second = ReliabilityDisplay.from_estimator(other, X[600:], Y[600:], ax=first.ax_, name="b")
    assert second.figure_ is first.figure_
    assert first.line_.get_color() != second.line_.get_color()
    labels = first.ax_.get_legend_handles_labels()[1]
    assert [label.split(",")[0] for label in labels] == ["calibrated", "a", "b"]
    again = second.plot(name="c", ref_line=False, color="black", linestyle=":")
    assert again is second
    assert again.ax_ is not first.ax_
    assert again.line_.get_color() == "black"
    assert again.ax_.get_legend_handles_labels()[1] == [f"c, ECE {second.ece:.3f}"]


def test_of_several_classes_it_draws_the_confidence_of_the_predicted_class():
    x, y = make_classification(900, 8, n_informative=5, n_classes=3, random_state=0)
    names = np.array(["c", "a", "b"])[y]
    fitted = GaussianNB().fit(x[:450], names[:450])
    display = ReliabilityDisplay.from_estimator(fitted, x[450:], names[450:], strategy="quantile")
    codes = np.searchsorted(fitted.classes_, names[450:])
    predictions = Predictions.from_probs(fitted.predict_proba(x[450:]), codes)
    assert display.ece == pytest.approx(metrics.adaptive_ece(predictions))
    assert display.ax_.get_xlabel() == "mean confidence"
    assert display.pos_label is None


def test_the_positive_class_can_be_chosen():
    names = np.array(["yes", "no"])[Y]
    fitted = model(names)
    given = fitted, X[600:], names[600:]
    default = ReliabilityDisplay.from_estimator(*given, n_bins=5)
    chosen = ReliabilityDisplay.from_estimator(*given, n_bins=5, pos_label="no")
    assert (default.pos_label, chosen.pos_label) == ("yes", "no")
    assert default.line_.get_xdata() == pytest.approx(1 - chosen.line_.get_xdata()[::-1])
    probs = fitted.predict_proba(X[600:])[:, 0]
    alone = ReliabilityDisplay.from_predictions(names[600:], probs, n_bins=5, pos_label="no")
    assert alone.line_.get_ydata() == pytest.approx(chosen.line_.get_ydata())
    assert alone.ax_.get_ylabel() == "frequency of no"


def test_weights_give_the_error_of_repeated_rows_and_wider_intervals():
    probs = model().predict_proba(X[600:])
    weights = np.random.default_rng(0).integers(0, 3, 600)
    weighted = ReliabilityDisplay.from_predictions(Y[600:], probs, sample_weight=weights)
    repeated = ReliabilityDisplay.from_predictions(
        np.repeat(Y[600:], weights), np.repeat(probs, weights, 0)
    )
    assert weighted.ece == pytest.approx(repeated.ece)
    few = weights.sum() / np.square(weights).sum()
    scaled = Predictions.from_probs(probs, Y[600:], weights=few * weights)
    assert weighted.points.high == pytest.approx(ReliabilityDisplay(scaled).points.high)
    assert few < 0.7


def test_the_scale_of_weights_does_not_matter():
    probs = model().predict_proba(X[600:])
    plain = ReliabilityDisplay.from_predictions(Y[600:], probs)
    for scale in (1 / 600, 50):
        found = ReliabilityDisplay.from_predictions(
            Y[600:], probs, sample_weight=np.full(600, scale)
        )
        assert found.points.high == pytest.approx(plain.points.high)


def test_it_has_the_numbers_of_a_display_of_scikit_learn():
    probs = model().predict_proba(X[600:])
    found = ReliabilityDisplay.from_predictions(Y[600:], probs)
    assert found.prob_true == pytest.approx(found.points.accuracy)
    assert found.prob_pred == pytest.approx(found.points.confidence)
    assert found.y_prob == pytest.approx(probs[:, 1])
    with pytest.raises(TypeError, match="no option 'bins', and lines of matplotlib have none"):
        ReliabilityDisplay.from_predictions(Y[600:], probs, bins=5)


REFUSED = {
    "strategy": (
        lambda: ReliabilityDisplay.from_predictions([0, 1], [0.1, 0.9], strategy="mass"),
        "strategy must be one of uniform, quantile, got 'mass'",
    ),
    "text without pos_label": (
        lambda: ReliabilityDisplay.from_predictions(["a", "b"], [0.1, 0.9]),
        "pos_label",
    ),
    "unknown pos_label": (
        lambda: ReliabilityDisplay.from_predictions([0, 1], [[0.9, 0.1]] * 2, pos_label=3),
        r"pos_label must be one of \[0, 1\], got 3",
    ),
    "pos_label of several": (
        lambda: ReliabilityDisplay.from_predictions([0, 1, 2], np.eye(3), pos_label=1),
        "pos_label is for two classes",
    ),
    "no probabilities": (
        lambda: ReliabilityDisplay.from_estimator(model(kind=Perceptron), X, Y),
        "Perceptron has no predict_proba",
    ),
    "no probability": (
        lambda: ReliabilityDisplay.from_predictions([0, 1], [0.1, 1.9]),
        r"probs outside \[0, 1\]",
    ),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_arguments_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
