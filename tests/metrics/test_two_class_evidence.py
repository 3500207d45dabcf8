"""Two classes: tests, verdicts and comparisons look at the probability of the positive class."""

import numpy as np
import pytest

import calibrant
from calibrant import Predictions, metrics
from calibrant.cli import main
from calibrant.metrics.binned import without_noise_l1


@pytest.fixture(scope="module")
def cancelling():
    """Errors at p and 1 - p that cancel in the confidence: the top-label ECE is about zero."""
    generator = np.random.default_rng(0)
    level = generator.integers(0, 4, 4000)
    rates = np.array([0.26, 0.34, 0.54, 0.86])
    labels = generator.random(4000) < rates[level]
    scores = np.array([0.2, 0.4, 0.6, 0.8])[level]
    return Predictions.from_binary(scores, labels.astype(int), kind="probs")


@pytest.mark.filterwarnings("ignore:15 equal-mass bins requested")
def test_errors_that_cancel_in_the_confidence_are_found(cancelling):
    assert metrics.ece(cancelling) < 0.02
    assert metrics.consistency_test(cancelling).p_value > 0.05
    assert metrics.consistency_test(cancelling, positive=True).p_value < 0.01
    assert metrics.cumulative_test(cancelling).p_value > 0.05
    assert metrics.cumulative_test(cancelling, positive=True).p_value < 0.01
    found = calibrant.audit(cancelling, resamples=200)
    assert found.state == "miscalibrated"
    assert "not at every probability (consistency p <=" in found.verdict
    assert "cumulative p" in found.verdict
    assert found.next_step.calibrator


def test_a_limit_on_the_ece_is_that_of_the_positive_class(cancelling, tmp_path, capsys):
    path = tmp_path / "p.npz"
    cancelling.save(path)
    options = ["--no-intervals", "--no-page", "--no-figure", "--max-ece"]
    assert main(["audit", str(path), *options, "0.03"]) == 1
    assert "binary_ece 0.06" in capsys.readouterr().err
    assert main(["audit", str(path), *options, "0.1"]) == 0


def test_fit_and_compare_show_the_positive_class(cancelling, tmp_path, capsys):
    path, fitted, after = (tmp_path / name for name in ("p.npz", "c.json", "after.npz"))
    cancelling.save(path)
    assert main(["fit", str(path), "--calibrator", "beta", "-o", str(fitted)]) == 0
    assert "binary_ece" in capsys.readouterr().out
    assert main(["apply", str(fitted), str(path), "--allow-same", "-o", str(after)]) == 0
    capsys.readouterr()
    assert main(["compare", str(path), str(after), "--resamples", "300"]) == 0
    out = capsys.readouterr().out
    assert "B is better calibrated: debiased_binary_ece lower" in out
    # The smallest p-value of 300 resamples, corrected for six metrics, is a bound.
    assert "<=0.0399" in out


def test_the_debiased_error_is_that_of_the_sums_over_bins(cancelling):
    sums = metrics.positive_sums(cancelling, bins=10)
    expected = without_noise_l1(sums)
    assert metrics.debiased_binary_ece(cancelling, bins=10) == pytest.approx(expected, abs=1e-12)
    assert metrics.debiased_binary_ece(cancelling) < metrics.binary_ece(cancelling)


def test_probabilities_of_0_and_1_do_not_decide_the_slope():
    generator = np.random.default_rng(1)
    truth = generator.beta(0.5, 0.5, 3000)
    labels = (generator.random(3000) < truth).astype(int)
    rounded = (10 * truth).round() / 10
    p = Predictions.from_binary(rounded, labels, kind="probs")
    # With 1e-38 for a zero the slope was 0.03.
    assert 0.5 < metrics.calibration_slope(p) < 1.2


def test_models_with_other_orders_of_the_classes_are_compared_in_pairs():
    generator = np.random.default_rng(2)
    logits = generator.normal(size=(300, 3))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    names = ["cat", "dog", "eel"]
    one = Predictions(logits, labels, class_names=names)
    other = one.with_class_order(["eel", "cat", "dog"])
    assert other.labels.tolist() == [(label + 1) % 3 for label in labels.tolist()]
    assert metrics.nll(other) == pytest.approx(metrics.nll(one), abs=1e-12)
    found = calibrant.audit({"a": one, "b": other.map(lambda z: 3 * z)}, resamples=100)
    assert found.paired
    assert found.differences["nll"]["b"].p_value < 0.05
    with pytest.raises(ValueError, match="names must be those of the classes"):
        one.with_class_order(["cat", "dog", "fox"])


@pytest.mark.filterwarnings("ignore:15 equal-mass bins requested")
def test_an_infinite_score_is_worse_than_a_finite_one():
    probs = np.tile([0.7, 0.2, 0.1], (200, 1))
    labels = np.tile([0, 0, 1, 2], 50)
    hard = probs.copy()
    hard[0] = [0.0, 0.5, 0.5]
    models = {"soft": Predictions.from_probs(probs, labels)}
    models["hard"] = Predictions.from_probs(hard, labels)
    found = calibrant.audit(models, resamples=50)
    assert found.mark("nll", "hard") == "worse"
    assert "inf" in [cell.text for cell in found.table.rows[1]]
    assert found.verdict.startswith("soft has the lowest log loss")
