"""Calibrators of other libraries behind one signature: logits and labels in, a map out."""

import contextlib
import os
import warnings
from collections.abc import Callable

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from netcal.binning import HistogramBinning, IsotonicRegression
    from netcal.scaling import BetaCalibration, LogisticCalibration, TemperatureScaling
    from probmetrics.calibrators import get_calibrator
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

Map = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray], Map]

# Below this a probability is taken for zero by libraries that return zeros.
LEAST = 1e-12


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities in float64."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def positive(probs: np.ndarray) -> np.ndarray:
    """Probabilities above zero that sum to one; some libraries return exact zeros."""
    raised = np.maximum(probs, LEAST)
    return raised / raised.sum(1, keepdims=True)


class Logits(ClassifierMixin, BaseEstimator):
    """The classifier that scikit-learn calibrates here: its scores are the features."""

    def fit(self, logits: np.ndarray, labels: np.ndarray) -> "Logits":
        """Take the classes."""
        self.classes_ = np.unique(labels)
        return self

    def predict(self, logits: np.ndarray) -> np.ndarray:
        """Give the class of the highest logit."""
        return self.classes_[logits.argmax(1)]

    def decision_function(self, logits: np.ndarray) -> np.ndarray:
        """Give the logits; for two classes the log-odds of the second."""
        return logits if logits.shape[1] > 2 else logits[:, 1] - logits[:, 0]


def _sklearn(method: str) -> Fit:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Map:
        frozen = FrozenEstimator(Logits().fit(logits, labels))
        found = CalibratedClassifierCV(frozen, method=method).fit(logits, labels)
        return lambda scores: positive(found.predict_proba(scores))

    return fit


def _netcal(make: Callable[[], object]) -> Fit:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Map:
        found = make()
        # Probabilities in float64: in float32 its temperature stays at 1.
        with _silence():
            found.fit(_netcal_input(logits), labels)

        def apply(scores: np.ndarray) -> np.ndarray:
            with _silence():
                probs = np.asarray(found.transform(_netcal_input(scores)))
            return positive(np.stack([1 - probs, probs], 1) if probs.ndim == 1 else probs)

        return apply

    return fit


def _netcal_input(logits: np.ndarray) -> np.ndarray:
    probs = softmax(logits)
    return probs[:, 1] if probs.shape[1] == 2 else probs


def _probmetrics(name: str) -> Fit:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Map:
        with _silence():
            found = get_calibrator(name).fit(softmax(logits), labels)

        def apply(scores: np.ndarray) -> np.ndarray:
            with _silence():
                return positive(np.asarray(found.predict_proba(softmax(scores))))

        return apply

    return fit


@contextlib.contextmanager
def _silence():
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


RIVALS: dict[str, Fit] = {
    "scikit-learn temperature": _sklearn("temperature"),
    "scikit-learn sigmoid": _sklearn("sigmoid"),
    "scikit-learn isotonic": _sklearn("isotonic"),
    "netcal temperature": _netcal(TemperatureScaling),
    "netcal logistic": _netcal(LogisticCalibration),
    "netcal beta": _netcal(BetaCalibration),
    "netcal isotonic": _netcal(IsotonicRegression),
    "netcal histogram": _netcal(lambda: HistogramBinning(15)),
    "probmetrics temperature": _probmetrics("temp-scaling"),
    "probmetrics isotonic": _probmetrics("isotonic"),
    "probmetrics svs": _probmetrics("svs"),
    "probmetrics sms": _probmetrics("sms"),
    "probmetrics logistic": _probmetrics("logistic"),
}
