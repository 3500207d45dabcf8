"""What both estimators share: fitting a calibrator by its name, predicting, saving."""

import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.fit_checks import convergence_remark
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.selection import AUTO, BLEND, fit_by_name
from calibrant.calibrators.stacking import identity_prior
from calibrant.calibrators.storage import calibrator_name, load, save
from calibrant.integrations.sklearn.scores import names
from calibrant.metrics import nll
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import without_warnings
from calibrant.setting_errors import did_you_mean

# With fewer examples differences between calibrators are noise.
FEWEST = 100
# Names of scikit-learn.
ALIASES = {"sigmoid": "did you mean platt?"}
# The default of a renamed parameter.
DEPRECATED = "deprecated"


class CalibratedPredictions(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Prediction methods of both estimators, and files of the calibrator."""

    classes_: np.ndarray
    calibrator_: Calibrator

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803, scikit-learn's name
        """Calibrated probabilities, (n, k), float64; columns in the order of `classes_`."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict_log_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Calibrated log-probabilities, (n, k), float64."""
        check_is_fitted(self)
        return np.asarray(self._predictions(X).map(self.calibrator_).logits.numpy())

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Most probable class, (n,)."""
        best = self.predict_log_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def save_calibrator(self, path: str | Path) -> None:
        """Write the fitted calibrator as JSON, without the classifier and without pickle."""
        check_is_fitted(self)
        save(self.calibrator_, path)

    def load_calibrator(self, path: str | Path) -> "CalibratedPredictions":
        """Use the calibrator of a file that `save_calibrator` wrote, instead of fitting one.

        Its classes must be those of the estimator, in the same order.
        """
        calibrator = load(path)
        if not isinstance(calibrator, Calibrator):
            name = calibrator_name(calibrator)
            raise ValueError(f"{path}: a {name} calibrator needs more than the scores of a row")
        known = self._known(calibrator.classes)
        classes = known["classes_"]
        origin = calibrator.origin
        held = None if origin is None else origin.class_names
        if len(classes) != calibrator.classes or (held is not None and held != names(classes)):
            shown = f"{calibrator.classes} classes" if held is None else ", ".join(held[:20])
            raise ValueError(
                f"{path} was fitted to {shown}, but the classes here are "
                f"{', '.join(names(classes)[:20])}"
            )
        self.__dict__.update(known, calibrator_=calibrator)
        return self

    @abstractmethod
    def _known(self, classes: int) -> dict[str, Any]:
        """Fitted attributes other than the calibrator, where one of so many classes is read."""

    @abstractmethod
    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        """Scores to calibrate, (n, k), float64; labels are not used."""


def checked_name(estimator: Any) -> str:
    """The calibrator that an estimator names, if there is one of this name."""
    name = estimator.calibrator
    if estimator.method != DEPRECATED:
        old = f"{type(estimator).__name__}.method"
        words = f"{old} is deprecated, use calibrator"
        warnings.warn(words, DeprecationWarning, stacklevel=3)
        name = estimator.method
    if not isinstance(name, str):
        raise TypeError(f"calibrator must be a name such as 'temperature', got {name!r}")
    if name not in CALIBRATORS and name not in (AUTO, BLEND):
        known = [*CALIBRATORS, AUTO, BLEND]
        hint = ALIASES.get(name) or did_you_mean(name, known)
        raise ValueError(f"no calibrator {name!r}; {hint}")
    return str(name)


def fitted_calibrator(name: str, predictions: Predictions) -> Calibrator:
    """Fit the calibrator of this name."""
    total = predictions.example_weights.sum()
    if name in (AUTO, BLEND) and total < FEWEST:
        fitted = _of_few(predictions)
        warnings.warn(
            f"calibrator={name!r} compares calibrators and needs {FEWEST} examples, got "
            f"{total:g}: used {calibrator_name(fitted)}; name a calibrator to avoid this",
            stacklevel=3,
        )
        return fitted
    return fit_by_name(name, predictions)


def _of_few(predictions: Predictions) -> Calibrator:
    """Temperature scaling if its likelihood outweighs the prior of no calibration; without folds.

    Folds would depend on how often a row is repeated; weights and repeated rows must agree.
    """
    with without_warnings():
        identity = CALIBRATORS["identity"].fit(predictions)
        temperature = CALIBRATORS["temperature"].fit(predictions)
    examples = float(predictions.example_weights.sum())
    gain = examples * (nll(predictions.map(identity)) - nll(predictions.map(temperature)))
    enough = gain > identity_prior(examples) and not convergence_remark(temperature)
    return temperature if enough else identity
