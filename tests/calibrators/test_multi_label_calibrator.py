"""Calibrators of several labels: shrunk towards a shared one, saved, matched by name."""

import numpy as np
import pytest
import torch

from calibrant import MultiLabel, Predictions, calibrators, metrics
from calibrant.calibrators import MultiLabelCalibrator, PlattScaling, TemperatureScaling
from calibrant.calibrators.intercepts import intercept_alone


def drawn(n, temperatures, seed=0, mean=-1.5):
    """Logits of labels that are multiplied by the temperatures planted."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(mean, 1.5, size=(n, len(temperatures)))
    labels = generator.random(logits.shape) < 1 / (1 + np.exp(-logits))
    return MultiLabel(logits * np.asarray(temperatures), labels)


def test_planted_temperatures_are_found():
    cal = MultiLabelCalibrator.fit(drawn(20_000, [1.0, 2.0, 4.0]), calibrator="temperature")
    found = [each.temperature for each in cal.calibrators.values()]
    assert found == pytest.approx([1, 2, 4], rel=0.06)


def test_many_labels_with_few_examples_are_closer_to_the_truth_than_separate_fits():
    planted = np.exp(np.random.default_rng(5).normal(0.7, 0.35, 60))
    few, held_out = drawn(120, planted, 3, -0.5), drawn(4000, planted, 2, -0.5)
    cal = MultiLabelCalibrator.fit(few, calibrator="temperature")
    assert cal.sliced.slices_win
    ways = {
        "shrunk": cal.calibrators,
        "apart": {name: TemperatureScaling.fit(few.label(name)) for name in few.label_names},
        "shared": dict.fromkeys(few.label_names, cal.shared),
    }
    nll, error = {}, {}
    for way, own in ways.items():
        found = np.array([own[name].temperature for name in few.label_names])
        nll[way] = metrics.macro(
            metrics.nll, MultiLabel(held_out.logits.numpy() / found, held_out.labels)
        )
        error[way] = np.square(np.log(found / planted)).mean()
    assert nll["shrunk"] < min(nll["apart"], nll["shared"])
    assert error["shrunk"] < 0.8 * min(error["apart"], error["shared"])


def of_one_outcome(k, n=2000):
    """Calibrated labels; the last three have no positive, no negative, and one at the top score."""
    given = drawn(n, [1.0] * k)
    labels = given.labels.clone()
    labels[:, -3], labels[:, -2], labels[:, -1] = 0, 1, 0
    labels[given.logits[:, -1].argmax(), -1] = 1
    return MultiLabel(given.logits, labels)


@pytest.mark.parametrize(("name", "k"), [("platt", 5), ("beta", 5), ("platt", 40)])
def test_a_label_of_one_outcome_is_predicted_about_as_rarely_as_it_occurs(name, k):
    given = of_one_outcome(k)
    cal = MultiLabelCalibrator.fit(given, calibrator=name)
    none, every, one = given.map(cal).probs.mean(0)[-3:]
    most = np.exp(2**0.5) / 2
    assert 0.5 / 2001 <= none <= most / 2000
    assert 0.5 / 2001 <= 1 - every <= most / 2000
    assert 1.5 / 2001 <= one <= 3 * most / 2000
    slopes = [each.coefficients[0, :-1] for each in list(cal.calibrators.values())[-3:]]
    for slope in slopes:
        torch.testing.assert_close(slope, cal.shared.coefficients[0, :-1])


def test_a_temperature_cannot_adapt_to_one_outcome_and_the_label_is_named():
    with pytest.warns(UserWarning, match="labels of one outcome only: 2, 3; .* platt and beta"):
        cal = MultiLabelCalibrator.fit(of_one_outcome(5), calibrator="temperature")
    assert cal.calibrators["2"] is cal.shared


def test_an_intercept_alone_has_the_smoothed_frequency_and_the_error_of_its_groups():
    part = drawn(400, [1.0]).label(0)
    overall = PlattScaling(classes=2, coefficients=torch.tensor([[0.5, 0.3]]).double())
    point, precisions = intercept_alone(overall, part)
    own = PlattScaling(classes=2, coefficients=torch.from_numpy(point)[None])
    probs, positives = part.map(own).positive_probs, int(part.labels.sum())
    assert float(probs.mean()) == pytest.approx((positives + 0.5) / 401, rel=1e-9)
    information = float((probs * (1 - probs)).sum())
    assert precisions == pytest.approx([0, information])
    copies = part.take(np.repeat(np.arange(400), 4))
    grouped = Predictions(copies.logits, copies.labels, groups=np.repeat(np.arange(400), 4))
    assert intercept_alone(overall, grouped)[1][1] == pytest.approx(information, rel=0.2)


def test_a_label_with_too_few_known_uses_the_shared_calibrator():
    given = drawn(3000, [1.0, 3.0, 2.0])
    labels = given.labels.numpy().copy()
    labels[19:, 2] = -1
    cal = MultiLabelCalibrator.fit(MultiLabel(given.logits, labels))
    own = cal.calibrators
    assert own["2"] is cal.shared
    assert own["1"] is not cal.shared
    assert [each.examples for each in cal.summaries] == [3000, 3000, 19]


def test_log_odds_are_those_of_the_calibrator_of_each_label():
    given = drawn(2000, [1.0, 3.0])
    cal = MultiLabelCalibrator.fit(given)
    assert isinstance(cal.shared, PlattScaling)
    odds = cal(given.logits)
    for at, own in enumerate(cal.calibrators.values()):
        both = own(given.label(at).logits)
        torch.testing.assert_close(odds[:, at], both[:, 1] - both[:, 0])
    torch.testing.assert_close(given.map(cal).probs, torch.sigmoid(odds))


@pytest.mark.filterwarnings("ignore:.*probabilities are exactly 0")
def test_probabilities_are_mapped_like_their_logits_and_zeros_by_the_floor():
    given = drawn(2000, [1.0, 3.0])
    labels = given.labels
    probs = given.probs.clone()
    probs[:3, 0] = torch.tensor([0.0, 1.0, 0.0])
    cal = MultiLabelCalibrator.fit(MultiLabel.from_probs(probs, labels))
    mapped = MultiLabel.from_probs(probs, labels).map(cal)
    assert mapped.logits.isfinite().all()
    assert cal.zero_floor is not None
    torch.testing.assert_close(mapped.logits[3:], cal(given.logits[3:]), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["temperature", "platt", "beta"])
def test_files_restore_it_bit_by_bit(name, tmp_path):
    cal = MultiLabelCalibrator.fit(drawn(600, [1.0, 3.0, 2.0]), calibrator=name)
    calibrators.save(cal, tmp_path / "cal.json")
    found = calibrators.load(tmp_path / "cal.json")
    assert isinstance(found, MultiLabelCalibrator)
    assert found.label_names == cal.label_names
    for own, other in zip(cal.calibrators.values(), found.calibrators.values(), strict=True):
        assert repr(own.parameters) == repr(other.parameters)


def test_a_file_of_slices_by_another_column_is_no_multi_label_calibrator(tmp_path):
    given = drawn(600, [1.0, 3.0])
    sliced = calibrators.SlicedCalibrator.fit(given.pooled(), np.tile(["a", "b"], 600))
    with pytest.raises(ValueError, match="need a sliced calibrator of two classes by 'label'"):
        MultiLabelCalibrator(sliced)


def test_columns_can_be_put_into_another_order():
    given = drawn(600, [1.0, 3.0, 2.0])
    cal = MultiLabelCalibrator.fit(given)
    turned = cal.for_labels(["2", "0", "1"])
    torch.testing.assert_close(turned(given.logits[:, [2, 0, 1]]), cal(given.logits)[:, [2, 0, 1]])
    with pytest.raises(ValueError, match="label 'x' is not one of the fit: 0, 1, 2"):
        cal.for_labels(["x"])


def test_what_cannot_be_fitted_is_said():
    given = drawn(100, [1.0, 2.0])
    with pytest.raises(ValueError, match="must be one of temperature, platt, beta, got 'vector'"):
        MultiLabelCalibrator.fit(given, calibrator="vector")
    cal = MultiLabelCalibrator.fit(given)
    with pytest.raises(ValueError, match="expected logits of 2 labels, got 3"):
        cal(np.zeros((4, 3)))
    assert "MultiLabelCalibrator" in cal._repr_html_()
