from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.data_folder import data_folder

DATA = data_folder()
MISSING = "the real logits are not there: put their folder in CALIBRANT_DATA"


class Real(NamedTuple):
    """One set of published predictions in float64, so that only definitions can differ."""

    name: str
    predictions: Predictions
    confidence: np.ndarray
    correct: np.ndarray
    probs: np.ndarray
    labels: np.ndarray


@cache
def splits() -> tuple[str, ...]:
    found = []
    for path in sorted(DATA.glob("logits_*.npz")):
        with np.load(path) as arrays:
            names = [name for name in arrays.files if name.startswith("logits_")]
        found += [f"{path.stem.removeprefix('logits_')}:{n.removeprefix('logits_')}" for n in names]
    return tuple(found)


@cache
def load(name: str) -> Real:
    stem, split = name.split(":")
    given = Predictions.load(
        DATA / f"logits_{stem}.npz",
        logits=f"logits_{split}",
        labels=f"labels_{split}",
        ignore=["*"],
    )
    predictions = Predictions(given.logits.double(), given.labels)
    return Real(
        name,
        predictions,
        predictions.confidence.numpy(),
        predictions.correct.numpy(),
        predictions.probs.numpy(),
        predictions.labels.numpy(),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that asks for `real` on every split of every logits file."""
    if "real" in metafunc.fixturenames:
        metafunc.parametrize("real", splits() or ["no data"], indirect=True)


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Real:
    if not splits():
        pytest.skip(MISSING)
    return load(request.param)


@pytest.fixture
def data() -> Path:
    if not DATA.is_dir():
        pytest.skip(MISSING)
    return DATA


@pytest.fixture
def top_label():
    """Make predictions with given confidences and correctness, for rivals that take only those."""

    def make(confidence: np.ndarray, correct: np.ndarray, classes: int = 2) -> Predictions:
        rest = (1 - confidence) / (classes - 1)
        probs = np.repeat(rest[:, None], classes, 1)
        probs[:, 0] = confidence
        return Predictions.from_probs(probs, np.where(correct > 0, 0, 1))

    return make
