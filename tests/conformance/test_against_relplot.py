"""relplot: the same smooth ECE, once its own discretisation is made fine and its ends avoided."""

import warnings

import numpy as np
import pytest

from calibrant.metrics import smece

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    relplot = pytest.importorskip("relplot")

from benchmarks.conformance_table import smoothed_error

# It bisects the bandwidth on [0, 1] ten times.
SEARCH = 2.0**-10
# Its coarsest grid has a point at each thousandth, and counts the mass on the last one half.
LAST_FULL_POINT = 0.999


@pytest.fixture
def fine_mesh(monkeypatch):
    """It sums over 200 points, both ends with full weight; 4,001 make that error small."""
    monkeypatch.setattr(relplot.config, "smECE_mesh_pts", 4001)


def test_the_width_found_is_the_fixed_point_of_the_definition(real):
    ours = smece(real.predictions)
    assert smoothed_error(real.confidence, real.correct, ours) == pytest.approx(ours, abs=1e-5)


def test_smece_is_the_same_away_from_the_end(real, top_label, fine_mesh):
    confidence = np.minimum(real.confidence, LAST_FULL_POINT)
    ours = smece(top_label(confidence, real.correct, real.predictions.classes))
    # Its own search is coarser than 1e-4, so its error is read at the width that we find.
    theirs = relplot.smECE_sigma(confidence, real.correct, sigma=ours)
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours == pytest.approx(relplot.smECE(confidence, real.correct), abs=SEARCH)


def test_relplot_halves_confidences_at_the_end(top_label, fine_mesh):
    # Half of the examples are certain and right; the others say 0.6 and are right 2 times of 5.
    confidence = np.repeat([1.0, 0.6], 500)
    correct = np.concatenate([np.ones(500), np.tile([1.0, 1.0, 0.0, 0.0, 0.0], 100)])
    ours = smece(top_label(confidence, correct))
    theirs = relplot.smECE(confidence, correct)
    # Hardly anything cancels: the error is 1/2 * |0.6 - 0.4|.
    assert smoothed_error(confidence, correct, ours) == pytest.approx(ours, abs=1e-5)
    assert ours == pytest.approx(0.1, abs=2e-3)
    # The certain half counts as a quarter, and the total as 3/4: 0.1 / (3/4).
    assert theirs == pytest.approx(0.1 / 0.75, abs=2e-3)
    moved = np.minimum(confidence, LAST_FULL_POINT)
    assert relplot.smECE(moved, correct) == pytest.approx(0.1, abs=2e-3)
