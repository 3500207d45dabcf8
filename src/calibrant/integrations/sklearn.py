"""Calibrators as scikit-learn estimators.

>>> from sklearn.datasets import load_iris
>>> from sklearn.svm import LinearSVC
>>> x, y = load_iris(return_X_y=True)
>>> model = CalibratedClassifier(LinearSVC(), calibrator="temperature").fit(x, y)
>>> model.predict_proba(x[:1]).shape
(1, 3)
"""

import warnings
from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.selection import select
from calibrant.calibrators.storage import BLEND
from calibrant.extras import need
from calibrant.predictions import Predictions
from calibrant.setting_errors import did_you_mean

need("sklearn", extra="sklearn", what="a scikit-learn estimator")

# After the check above, which explains a missing package.
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone  # noqa: E402
from sklearn.frozen import FrozenEstimator  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import cross_val_predict  # noqa: E402
from sklearn.utils import column_or_1d, get_tags  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import (  # noqa: E402
    _check_sample_weight,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

KINDS = ("logits", "probs", "features")
# Calibrators that `select` makes, with at most this many folds.
AUTO, FOLDS = "auto", 5
# The default of a renamed parameter.
DEPRECATED = "deprecated"
# Methods of a classifier that return scores, and what these are.
RESPONSES = {"decision_function": "logits", "predict_proba": "probs"}


class _CalibratedPredictions(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Prediction methods of both estimators."""

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

    @abstractmethod
    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        """Scores to calibrate, (n, k), float64; labels are not used."""


class PosthocCalibrator(_CalibratedPredictions):
    """A calibrator of the scores X of any classifier, one row for each example.

    Args:
        calibrator: name of a calibrator, one of `calibrant.calibrators.CALIBRATORS`; "auto" selects
            the best by cross-validation, "blend" averages all that are not significantly worse.
        kind: what the columns of X are.
            "logits": one for each class, -inf for masked ones; a single column is the log-odds of
            the second of two classes.
            "probs": probabilities, in the same shapes.
            "features": any number of features, such as pairwise margins or logits of several
            networks; multinomial logistic regression on the same examples converts them to logits.
            This kind passes `check_estimator`; the other two require one column for each class.
        classes: labels of the columns, for classes that do not occur in y; by default the sorted
            labels in y.
        method: deprecated, use `calibrator`.

    Attributes:
        classes_: labels, one for each column of `predict_proba`.
        calibrator_: the fitted calibrator, to save or export.
        link_: the logistic regression of kind "features".
    """

    def __init__(
        self,
        calibrator: str = "temperature",
        *,
        kind: Literal["logits", "probs", "features"] = "logits",
        classes: Any = None,
        method: str = DEPRECATED,
    ) -> None:
        self.calibrator = calibrator
        self.kind = kind
        self.classes = classes
        self.method = method

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "PosthocCalibrator":  # noqa: N803
        """Fit to scores of held-out examples, (n, k), and their labels, (n,)."""
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        # Logits of -inf mask classes; Predictions refuses NaN and inf.
        finite = self.kind != "logits"
        scores, y = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=finite)
        self.classes_, labels = _numbered(y, self.classes)
        weights = _weights(sample_weight, scores)
        if self.kind == "features":
            if len(np.unique(labels)) < len(self.classes_):
                raise ValueError("kind 'features' needs examples of every class in y")
            self.link_ = LogisticRegression(solver="newton-cholesky", tol=1e-8, max_iter=1000)
            self.link_.fit(scores, labels, sample_weight=weights)
        self.calibrator_ = _fitted(self, self._wrapped(scores, labels, weights))
        return self

    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        finite = self.kind != "logits"
        scores = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=finite)
        return self._wrapped(scores)

    def _wrapped(self, scores: np.ndarray, *labels: np.ndarray | None) -> Predictions:
        kind: str = self.kind
        if kind == "features":
            scores, kind = self.link_.decision_function(scores), "logits"
        return as_predictions(scores, kind, len(self.classes_), *labels)


class CalibratedClassifier(MetaEstimatorMixin, _CalibratedPredictions):  # type: ignore[misc]
    """A classifier followed by a calibrator.

    A fitted classifier, in `FrozenEstimator` or with `cv="prefit"`, is not refitted, and the
    calibrator is fitted to the examples given to `fit`, which should be held out. Otherwise the
    calibrator is fitted to out-of-fold scores, and the classifier to all examples.

    Args:
        estimator: the classifier; logistic regression if not given.
        calibrator: name of a calibrator, one of `calibrant.calibrators.CALIBRATORS`; "auto" selects
            the best by cross-validation, "blend" averages all that are not significantly worse.
        cv: number of folds, any `cv` of scikit-learn, or "prefit". A number is reduced to the
            count of the rarest class.
        response: the method that returns the scores: "decision_function", used as logits, or
            "predict_proba"; "auto" is the first of these that exists.
        method: deprecated, use `calibrator`.

    Attributes:
        classes_: labels, one for each column of `predict_proba`.
        calibrator_: the fitted calibrator, to save or export.
        estimator_: the fitted classifier.
        response_: the method that returns the scores.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        calibrator: str = "temperature",
        cv: Any = 5,
        response: Literal["auto", "decision_function", "predict_proba"] = "auto",
        method: str = DEPRECATED,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.response = response
        self.method = method

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "CalibratedClassifier":  # noqa: N803
        """Fit the calibrator, and the classifier unless it is prefit.

        Weights are passed to the calibrator, and to the classifier if it supports them.
        """
        validate_data(self, X, skip_check_array=True)
        estimator = self._estimator()
        y = column_or_1d(y, warn=True)
        weights = _weights(sample_weight, X)
        self.response_ = _response(estimator, self.response)
        if self.cv == "prefit" or isinstance(estimator, FrozenEstimator):
            check_is_fitted(estimator)
            self.estimator_ = estimator
            self.classes_, labels = _numbered(y, estimator.classes_)
            scores = getattr(estimator, self.response_)(X)
        else:
            self.classes_, labels = _numbered(y, None)
            params = {}
            if weights is not None and has_fit_parameter(estimator, "sample_weight"):
                params["sample_weight"] = weights
            split = {"cv": _folds(self.cv, labels), "method": self.response_, "params": params}
            scores = cross_val_predict(estimator, X, y, **split)
            self.estimator_ = clone(estimator).fit(X, y, **params)
        self.calibrator_ = _fitted(self, self._wrapped(scores, labels, weights))
        return self

    def _estimator(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        # The classifier itself validates the features.
        return self._wrapped(getattr(self.estimator_, self.response_)(X))

    def _wrapped(self, scores: np.ndarray, *labels: np.ndarray | None) -> Predictions:
        return as_predictions(scores, RESPONSES[self.response_], len(self.classes_), *labels)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._estimator()).input_tags
        return tags


def as_predictions(
    scores: Any,
    kind: str,
    classes: int,
    labels: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Predictions:
    """Wrap scores of shape (n, k), or (n,) or (n, 1) of two classes; labels are 0 by default."""
    values = np.asarray(scores, dtype=np.float64)
    columns = 1 if values.ndim == 1 else values.shape[1]
    if columns != (classes if classes > 2 else columns) or columns > classes:
        raise ValueError(
            f"X has {columns} columns of {kind} for {classes} classes; expected one for each class "
            "(or pass classes=..., or kind='features' if the columns are not classes)"
        )
    labels = np.zeros(len(values), dtype=np.int64) if labels is None else labels
    if columns == 1:
        one = values.reshape(-1)
        return Predictions.from_binary(one, labels, kind=kind, weights=weights)  # type: ignore[arg-type]
    make = Predictions if kind == "logits" else Predictions.from_probs
    return make(values, labels, weights=weights)


def _fitted(estimator: Any, predictions: Predictions) -> Calibrator:
    name = estimator.calibrator
    if estimator.method != DEPRECATED:
        old = f"{type(estimator).__name__}.method"
        words = f"{old} is deprecated, use calibrator"
        warnings.warn(words, DeprecationWarning, stacklevel=3)
        name = estimator.method
    if name in (AUTO, BLEND):
        found = select(predictions, folds=min(FOLDS, len(predictions)))
        return found.best if name == AUTO else found.blend
    if name not in CALIBRATORS:
        known = [*CALIBRATORS, AUTO, BLEND]
        raise ValueError(f"no calibrator {name!r}; {did_you_mean(name, known)}")
    return CALIBRATORS[name].fit(predictions)


def _numbered(y: np.ndarray, classes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, and the class index of each label."""
    check_classification_targets(y)
    known = np.unique(y) if classes is None else np.asarray(classes)
    if len(known) < 2:
        held = f"one class: {known.tolist()[0]!r}" if len(known) else "none"
        raise ValueError(f"need examples of at least 2 classes, y holds {held}")
    position = {label: index for index, label in enumerate(known.tolist())}
    unknown = [label for label in np.unique(y).tolist() if label not in position]
    if unknown:
        raise ValueError(f"label {unknown[0]!r} in y is not among the classes {known.tolist()}")
    return known, np.array([position[label] for label in y.tolist()], dtype=np.int64)


def _weights(given: Any, X: Any) -> np.ndarray | None:  # noqa: N803
    return None if given is None else np.asarray(_check_sample_weight(given, X, dtype=np.float64))


def _response(estimator: Any, given: str) -> str:
    if given not in ("auto", *RESPONSES):
        raise ValueError(f"response must be auto or one of {', '.join(RESPONSES)}, got {given!r}")
    tried = RESPONSES if given == "auto" else [given]
    for name in tried:
        if hasattr(estimator, name):
            return name
    raise ValueError(f"{type(estimator).__name__} has no {' and no '.join(tried)}")


def _folds(cv: Any, labels: np.ndarray) -> Any:
    if not isinstance(cv, int):
        return cv
    rarest = int(np.bincount(labels).min())
    if rarest < 2:
        raise ValueError("cross-validation needs at least 2 examples of every class; use more")
    return min(cv, rarest)
