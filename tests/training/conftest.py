"""Small data and networks."""

import pytest

from calibrant import data, methods, models
from calibrant.training import Recipe


@pytest.fixture(autouse=True)
def _every_epoch_is_saved(monkeypatch):
    """Epochs here take milliseconds."""
    monkeypatch.setattr("calibrant.training.run.SAVE_LEAST", 0.0)


@pytest.fixture(scope="session")
def blobs() -> data.Splits:
    return data.load("blobs", 0, limit=400)


@pytest.fixture(scope="session")
def digits() -> data.Splits:
    return data.load("digits", 0, limit=300)


@pytest.fixture
def network():
    """Make a network for a dataset; the same one each time."""

    def make(splits: data.Splits, name: str = "mlp", **settings):
        return models.build(
            name,
            classes=splits.classes,
            shape=splits.shape,
            vocabulary=splits.vocabulary,
            seed=3,
            **settings,
        )

    return make


@pytest.fixture
def method():
    """Make a method by name."""

    def make(splits: data.Splits, name: str = "cross_entropy", **settings):
        return methods.build(name, classes=splits.classes, **settings)

    return make


@pytest.fixture
def quick() -> Recipe:
    return Recipe(epochs=3, batch=64, lr=0.05)
