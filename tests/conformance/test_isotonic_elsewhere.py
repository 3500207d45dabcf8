"""scikit-learn and cir-model: the same isotonic regressions, without our pseudo-example."""

import warnings

import numpy as np
import pytest
from scipy.special import expit

from calibrant import Predictions
from calibrant.calibrators import CenteredIsotonic, IsotonicRegression
from calibrant.calibrators.one_versus_rest import odds_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    cir = pytest.importorskip("cir_model")
    rivals = pytest.importorskip("benchmarks.posthoc_rivals")
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator


def drawn(classes, n=1500, seed=0):
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(n, classes))
    return Predictions(logits, (logits / 2 + generator.gumbel(size=(n, classes))).argmax(1))


def test_isotonic_regression_of_two_classes_is_that_of_scikit_learn():
    data, new = drawn(2), drawn(2, seed=1).logits.numpy()
    scores, labels = data.logits.numpy(), data.labels.numpy()
    frozen = FrozenEstimator(rivals.Logits().fit(scores, labels))
    theirs = CalibratedClassifierCV(frozen, method="isotonic").fit(scores, labels)
    # One example, half of it of either class, keeps ours off 0 and 1.
    expected = (len(data) * theirs.predict_proba(new) + 0.5) / (len(data) + 1)
    np.testing.assert_allclose(IsotonicRegression.fit(data)(new).exp(), expected, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_centered_isotonic_regression_has_the_points_of_cir_model(classes):
    # Between them, it is linear in the probability and ours in the log-odds. It keeps both ends of
    # the first and last block, and by default of blocks of frequency 0 and 1.
    data = drawn(classes)
    n, ours = len(data), CenteredIsotonic.fit(data)
    for j, odds in enumerate(odds_of(data.logits).T.numpy()):
        own = data.labels.numpy() == (j if classes > 2 else 1)
        theirs = cir.CenteredIsotonicRegression(non_centered_points=[]).fit(expit(odds), own)
        part = slice(*ours.offsets[j : j + 2].tolist())
        knots = expit(ours.knots[part].numpy())
        np.testing.assert_allclose(knots, theirs.X_thresholds_[1:-1], atol=1e-9)
        expected = (n * theirs.y_thresholds_[1:-1] + 1 / classes) / (n + 1)
        np.testing.assert_allclose(ours.values[part], expected, atol=1e-9)
