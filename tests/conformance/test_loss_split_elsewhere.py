"""probmetrics: the same split of a proper score by recalibration, on the same folds."""

import warnings

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import split_loss
from calibrant.calibrators.selection import fold_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = pytest.importorskip("probmetrics.metrics")
    calibrators = pytest.importorskip("probmetrics.calibrators")
    splitters = pytest.importorskip("probmetrics.splitters")
    from probmetrics.distributions import CategoricalDirac, CategoricalProbs


class Folds(splitters.Splitter):
    """Our folds; its own are drawn by scikit-learn."""

    def __init__(self, fold):
        self.fold = fold

    def get_splits(self, y_true, random_state=None):
        return [
            (np.flatnonzero(self.fold != each), np.flatnonzero(self.fold == each))
            for each in range(self.fold.max() + 1)
        ]

    def get_name(self):
        return "ours"


@pytest.mark.parametrize(("score", "name"), [("nll", "logloss"), ("brier", "brier")])
def test_both_parts_are_the_same(score, name):
    generator = np.random.default_rng(0)
    logits = 3 * generator.normal(size=(1500, 4))
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)
    p = Predictions(logits, labels)
    metric = theirs.MetricsWithCalibration(
        theirs.CombinedMetrics([theirs.LogLoss(), theirs.BrierLoss()]),
        calibrators.get_calibrator("temp-scaling"),
        Folds(fold_of(p, folds=5, seed=0)),
        cal_name="temperature",
    )
    found = metric.compute_all(
        CategoricalDirac(torch.from_numpy(labels), n_classes=4), CategoricalProbs(p.probs)
    )
    ours = split_loss(p, score=score, resamples=50)
    assert ours.calibration > 0.01
    parts = {"calib-err": ours.calibration, "refinement": ours.refinement}
    for part, value in parts.items():
        # Its temperature is found by 30 bisections.
        assert value == pytest.approx(float(found[f"{part}_{name}_temperature_ours"]), abs=1e-6)
