"""Matrices that would not fit into memory are refused before anything of their size is made."""

import tracemalloc

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, select, vector_matrix

MATRICES = ["matrix", "dirichlet", "structured_matrix", "focal_structured_matrix"]


@pytest.fixture(scope="module")
def many():
    """300 examples of 10,000 classes."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 10_000)).astype(np.float32) * 3
    return Predictions(logits, generator.integers(0, 10_000, 300))


def few(k=4):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(400, k))
    return Predictions(logits, (logits + generator.gumbel(size=logits.shape)).argmax(1))


@pytest.mark.parametrize("name", MATRICES)
def test_ten_thousand_classes_are_refused_with_size_limit_and_advice(name, many):
    tracemalloc.start()
    try:
        words = "10,000 x 10,000 .* about 48.4 GB of memory, the limit is 2.0 GB; use vector"
        with pytest.raises(ValueError, match=words):
            CALIBRATORS[name].fit(many)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A single matrix of float64 would be 800 MB.
    assert peak < 10 * 2**20


@pytest.mark.filterwarnings("ignore:.*classes never occur")
def test_a_selection_skips_them_with_the_reason(many):
    found = select(many, candidates=["identity", *MATRICES], folds=2, resamples=20)
    assert found.name == "identity"
    assert list(found.skipped) == MATRICES
    assert "skipped: structured_matrix: fitting a matrix of 10,000 x 10,000" in str(found)
    assert "limit" in found.as_dict()["skipped"]["dirichlet"]


@pytest.mark.parametrize("name", MATRICES)
def test_the_limit_is_on_the_bytes_of_a_fit(name, monkeypatch):
    needed = 8 * vector_matrix.COPIES * 4 * 5
    monkeypatch.setattr(vector_matrix, "MAX_BYTES", needed)
    CALIBRATORS[name].fit(few())
    monkeypatch.setattr(vector_matrix, "MAX_BYTES", needed - 1)
    with pytest.raises(ValueError, match="fitting a matrix of 4 x 4 classes needs about"):
        CALIBRATORS[name].fit(few())


def test_up_to_2000_classes_are_allowed():
    vector_matrix.refuse_large(2000)
    with pytest.raises(ValueError, match="2,100 x 2,100"):
        vector_matrix.refuse_large(2100)
