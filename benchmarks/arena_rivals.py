"""Calibrators of other libraries in the arena, each as its documentation says."""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.posthoc_rivals import RIVALS, Fit, Map, _netcal, _probmetrics, positive, softmax

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import betacal
    import ml_insights
    import pandas as pd
    from calibre import ISplineCalibrator
    from mcgrad.methods import MCGrad
    from netcal.binning import BBQ, ENIR
    from netcal.scaling import BetaCalibration
    from sklearn.base import BaseEstimator, ClassifierMixin
    from venn_abers import VennAbersCalibrator

logging.getLogger("mcgrad").setLevel(logging.ERROR)
# What a problem may have: classes, and scores (examples times classes) for the fit.
MANY, ALL = 20, 1 << 62


class Rival(NamedTuple):
    """One calibrator, and the problems it runs on; larger ones take minutes or have no answer."""

    fit: Fit
    classes: int = 1000
    scores: int = ALL


def _binary(make: Callable[[np.ndarray, np.ndarray], Map]) -> Fit:
    """From one for probabilities of class 1: probabilities and labels in, a map out."""

    def fit(logits: np.ndarray, labels: np.ndarray) -> Map:
        found = make(softmax(logits)[:, 1], labels)

        def apply(scores: np.ndarray) -> np.ndarray:
            one = np.clip(np.asarray(found(softmax(scores)[:, 1]), float), 0, 1)
            return positive(np.stack([1 - one, one], 1))

        return apply

    return fit


def _beta(parameters: str) -> Fit:
    def make(probs: np.ndarray, labels: np.ndarray) -> Map:
        return betacal.BetaCalibration(parameters).fit(probs[:, None], labels).predict

    return _binary(make)


def _ispline(probs: np.ndarray, labels: np.ndarray) -> Map:
    return ISplineCalibrator().fit(probs, labels.astype(float)).transform


def _spline(probs: np.ndarray, labels: np.ndarray) -> Map:
    found = ml_insights.SplineCalib()
    found.fit(probs, labels)
    return found.calibrate


def _mcgrad(probs: np.ndarray, labels: np.ndarray) -> Map:
    """Without columns it has the log-odds as its only feature."""

    def frame(scores: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame({"score": scores, "odds": np.log(scores / (1 - scores))})

    inside = partial(np.clip, a_min=1e-6, a_max=1 - 1e-6)
    model = MCGrad()
    given = frame(inside(probs)).assign(label=labels)
    model.fit(given, "score", "label", numerical_feature_column_names=["odds"])
    return lambda scores: model.predict(
        frame(inside(scores)), "score", numerical_feature_column_names=["odds"]
    )


class _Given(ClassifierMixin, BaseEstimator):
    """The classifier whose predictions are calibrated: its inputs are its probabilities."""

    def fit(self, probs: np.ndarray, labels: np.ndarray) -> "_Given":
        self.classes_ = np.unique(labels)
        return self

    def predict_proba(self, probs: np.ndarray) -> np.ndarray:
        return probs

    def predict(self, probs: np.ndarray) -> np.ndarray:
        return probs.argmax(1)


def _venn_abers(*, inductive: bool) -> Fit:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Map:
        probs = softmax(logits)
        if inductive:

            def apply(scores: np.ndarray) -> np.ndarray:
                found = VennAbersCalibrator().predict_proba(
                    p_cal=probs, y_cal=labels, p_test=softmax(scores)
                )
                return positive(np.asarray(found))

            return apply
        model = VennAbersCalibrator(
            estimator=_Given().fit(probs, labels), inductive=False, n_splits=5, random_state=0
        )
        model.fit(probs, labels)
        return lambda scores: positive(np.asarray(model.predict_proba(softmax(scores))))

    return fit


ARENA: dict[str, Rival] = {
    **{
        name: Rival(RIVALS[name])
        for name in (
            "scikit-learn sigmoid",
            "scikit-learn isotonic",
            "scikit-learn temperature",
            "probmetrics svs",
            "probmetrics sms",
            "probmetrics logistic",
        )
    },
    "probmetrics temperature mix": Rival(_probmetrics("ts-mix")),
    "probmetrics logistic mix": Rival(_probmetrics("logistic-mix")),
    "probmetrics quadratic": Rival(_probmetrics("quadratic-scaling"), classes=2),
    "probmetrics affine": Rival(_probmetrics("affine-scaling"), classes=2),
    "probmetrics venn-abers": Rival(_probmetrics("ivap-ovr"), scores=100_000),
    "probmetrics centered isotonic": Rival(_probmetrics("cir"), classes=MANY),
    "netcal temperature": Rival(RIVALS["netcal temperature"]),
    "netcal beta": Rival(_netcal(BetaCalibration), classes=5, scores=12_000),
    "netcal bbq": Rival(_netcal(BBQ), classes=MANY),
    "netcal enir": Rival(_netcal(ENIR), classes=5, scores=12_000),
    "betacal abm": Rival(_beta("abm"), classes=2),
    "betacal am": Rival(_beta("am"), classes=2),
    "venn-abers inductive": Rival(_venn_abers(inductive=True), classes=MANY, scores=60_000),
    "venn-abers cross": Rival(_venn_abers(inductive=False), classes=2),
    "MCGrad": Rival(_binary(_mcgrad), classes=2),
    "ml-insights spline": Rival(_binary(_spline), classes=2),
    "calibre i-spline": Rival(_binary(_ispline), classes=2),
}
