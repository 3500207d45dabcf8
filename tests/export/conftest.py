import warnings
from functools import cache

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, PriorShift
from calibrant.calibrators.blend import blended

BLENDED = ("temperature", "vector", "ensemble_temperature", "platt", "isotonic", "irm", "histogram")


@cache
def _fitted(name, classes):
    if name == "blend":
        parts = [_fitted(part, classes) for part in BLENDED]
        shares = np.arange(1, len(parts) + 1)
        return blended(parts, (shares / 28).tolist(), (shares[::-1] / 25).tolist())
    if name == "prior_shift":
        target = np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()
        inside = _fitted("vector", classes)
        return PriorShift.of_priors(inside.origin.class_frequencies, target, calibrator=inside)
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(2000, classes)) * 3
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CALIBRATORS[name].fit(Predictions(logits, labels))


@pytest.fixture(scope="session")
def fitted():
    """Return a calibrator of a name and a number of classes, fitted once."""
    return _fitted


@pytest.fixture(scope="session")
def masked_logits():
    """Return 300 rows of float32 logits with one to k allowed classes."""

    def of(k):
        generator = np.random.default_rng(3)
        logits = generator.normal(size=(300, k)).astype(np.float32) * 4
        options = generator.integers(1, k + 1, 300)[:, None]
        logits[generator.permuted(np.tile(np.arange(k), (300, 1)), axis=1) >= options] = -np.inf
        return logits

    return of
