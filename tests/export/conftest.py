import warnings
from functools import cache

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS


@cache
def _fitted(name, classes):
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
