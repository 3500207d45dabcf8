"""betacal, probmetrics and scikit-learn: the same functions of the log-odds, where they converge.

Most of them stop L-BFGS early, so on the examples of the fit their loss is not below ours.
"""

import warnings

import numpy as np
import pytest
from scipy.special import expit

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    BetaCalibration,
    PlattScaling,
    QuadraticScaling,
    TemperatureScaling,
)
from calibrant.calibrators.one_versus_rest import log_odds

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    betacal = pytest.importorskip("betacal")
    probmetrics = pytest.importorskip("probmetrics.calibrators")
    rivals = pytest.importorskip("benchmarks.posthoc_rivals")
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

# Log-odds of class 1 as a function of the probability: the optimum is inside, or a, or b is 0.
TRUTHS = {
    "inside": lambda p: 0.8 * np.log(p) - 0.4 * np.log1p(-p) - 0.3,
    "a is 0": lambda p: 0.4 * np.log(p) - 2 * np.log1p(-p) - 1 - 2 * (p < 0.2) * np.log(5 * p),
    "b is 0": lambda p: 2 * np.log(p) + 0.4 * np.log1p(-p) + 1,
}
NEW = np.linspace(-6, 6, 200)
TOLERANCE = 5e-4


def drawn(truth, n=2000):
    generator = np.random.default_rng(0)
    odds = 2 * generator.normal(size=n)
    labels = (generator.random(n) < expit(truth(expit(odds)))).astype(int)
    return Predictions.from_binary(odds, labels, kind="logits"), expit(odds), labels


def mapped(fitted) -> np.ndarray:
    return fitted(np.stack([np.zeros(len(NEW)), NEW], 1)).exp()[:, 1].numpy()


def loss_of(probs, data) -> float:
    return metrics.nll(Predictions.from_binary(probs, data.labels, kind="probs"))


@pytest.mark.parametrize("truth", TRUTHS)
def test_beta_calibration_is_that_of_its_authors(truth):
    data, probs, labels = drawn(TRUTHS[truth])
    theirs, ours = betacal.BetaCalibration("abm").fit(probs, labels), BetaCalibration.fit(data)
    a, b, _ = theirs.calibrator_.map_
    assert (a == 0, b == 0) == (truth == "a is 0", truth == "b is 0")
    assert ours.coefficients[0, :2].tolist() == pytest.approx([a, b], abs=0.005)
    np.testing.assert_allclose(mapped(ours), theirs.predict(expit(NEW)), atol=TOLERANCE)
    assert metrics.nll(data.map(ours)) <= loss_of(theirs.predict(probs), data) + 1e-12


@pytest.mark.parametrize(("parameters", "kind"), [("am", PlattScaling), ("a", TemperatureScaling)])
def test_beta_calibration_with_equal_slopes_is_platt_or_temperature_scaling(parameters, kind):
    data, probs, labels = drawn(TRUTHS["inside"])
    theirs = betacal.BetaCalibration(parameters).fit(probs, labels)
    np.testing.assert_allclose(mapped(kind.fit(data)), theirs.predict(expit(NEW)), atol=TOLERANCE)


def test_beta_calibration_without_an_intercept_is_a_part_of_ours():
    # "ab" fixes f(1/2) = 1/2, which has no counterpart here.
    data, probs, labels = drawn(TRUTHS["inside"])
    theirs = betacal.BetaCalibration("ab").fit(probs, labels)
    assert metrics.nll(data.map(BetaCalibration.fit(data))) < loss_of(theirs.predict(probs), data)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("quadratic-scaling", QuadraticScaling),
        ("affine-scaling", PlattScaling),
        ("linear-scaling", TemperatureScaling),
    ],
)
def test_polynomials_of_the_log_odds_are_those_of_probmetrics(name, kind):
    data, probs, labels = drawn(TRUTHS["a is 0"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn, about how it is called
        theirs = probmetrics.get_calibrator(name).fit(np.stack([1 - probs, probs], 1), labels)
    both = np.stack([expit(-NEW), expit(NEW)], 1)
    ours = kind.fit(data)
    np.testing.assert_allclose(mapped(ours), theirs.predict_proba(both)[:, 1], atol=TOLERANCE)
    assert ours.origin.gradient_norm < 1e-9
    # Its probabilities are float32.
    seen = theirs.predict_proba(np.stack([1 - probs, probs], 1))[:, 1]
    assert metrics.nll(data.map(ours)) <= loss_of(seen, data) + 1e-6


@pytest.mark.parametrize("classes", [2, 3])
def test_the_sigmoid_of_scikit_learn_is_platt_scaling_with_smooth_targets(classes):
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(900, classes))
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)
    data = Predictions(logits, labels)
    # It maps any score; ours are the log-odds of a class against the rest.
    scores = log_odds(data.logits).numpy() if classes > 2 else logits
    frozen = FrozenEstimator(rivals.Logits().fit(scores, labels))
    theirs = CalibratedClassifierCV(frozen, method="sigmoid").fit(scores, labels)
    ours = PlattScaling.fit(data, smooth_targets=True)
    np.testing.assert_allclose(data.map(ours).probs, theirs.predict_proba(scores), atol=TOLERANCE)
