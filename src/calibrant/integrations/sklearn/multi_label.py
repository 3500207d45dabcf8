"""A classifier of several labels followed by their calibrators, as a scikit-learn estimator."""

from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils import check_consistent_length, get_tags
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import (
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from calibrant.calibrators.multi_label import LABEL_CALIBRATORS, MultiLabelCalibrator
from calibrant.integrations.sklearn.responses import RESPONSES, response_of, scores_of
from calibrant.integrations.sklearn.scores import sample_weights
from calibrant.multi_label import MultiLabel


class CalibratedMultiLabelClassifier(
    MetaEstimatorMixin,  # type: ignore[misc]
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A classifier of several labels followed by a calibrator of each, shrunk to a shared one.

    `y` is an indicator matrix (n, k) of 0 and 1. A fitted classifier, in `FrozenEstimator` or with
    `cv="prefit"`, is not refitted, and `y` may then have missing labels: NaN or -1. Otherwise the
    calibrator is fitted to out-of-fold scores, and the classifier to all examples.

    Args:
        estimator: a classifier that takes an indicator matrix: a forest, nearest neighbours,
            `MultiOutputClassifier`, `OneVsRestClassifier`, `ClassifierChain`, `MLPClassifier`;
            logistic regression of each label if not given.
        calibrator: temperature, platt or beta.
        cv: number of folds, any `cv` of scikit-learn, or "prefit".
        response: the scores: "margin", raw scores of LightGBM and XGBoost; "decision_function",
            used as logits; or "predict_proba". "auto" is the first of these that exists.

    Attributes:
        n_labels_: k.
        calibrator_: the fitted `MultiLabelCalibrator`, to save.
        estimator_: the fitted classifier.
        response_: what the scores are.
        returns_list_: whether `predict_proba` returns a list of k arrays (n, 2).

    Examples:
        >>> from sklearn.datasets import make_multilabel_classification
        >>> from sklearn.multioutput import MultiOutputClassifier
        >>> x, y = make_multilabel_classification(n_classes=3, random_state=0)
        >>> separate = MultiOutputClassifier(LogisticRegression())
        >>> model = CalibratedMultiLabelClassifier(separate, calibrator="temperature").fit(x, y)
        >>> [each.shape for each in model.predict_proba(x[:2])]
        [(2, 2), (2, 2), (2, 2)]
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        calibrator: str = "platt",
        cv: Any = 5,
        response: Literal["auto", "margin", "decision_function", "predict_proba"] = "auto",
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.response = response

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
    ) -> "CalibratedMultiLabelClassifier":
        """Fit the calibrator, and the classifier unless it is prefit.

        Weights are passed to the calibrator, and to the classifier if it supports them.
        """
        if self.calibrator not in LABEL_CALIBRATORS:
            known = ", ".join(LABEL_CALIBRATORS)
            raise ValueError(f"calibrator must be one of {known}, got {self.calibrator!r}")
        estimator, labels = self._estimator(), _indicator(y)
        validate_data(self, X, skip_check_array=True)
        check_consistent_length(X, labels)
        weights = sample_weights(sample_weight, X)
        self.n_labels_ = labels.shape[1]
        if self.cv == "prefit" or isinstance(estimator, FrozenEstimator):
            check_is_fitted(estimator)
            self.estimator_ = estimator
            self.response_ = response_of(estimator, self.response)
            scores, self.returns_list_ = self._scores(estimator, X)
        else:
            if not np.isin(labels, (0, 1)).all():
                raise ValueError("y must hold 0 and 1; missing labels need a prefit classifier")
            labels = labels.astype(np.int64)
            used = has_fit_parameter(estimator, "sample_weight")
            scores = np.empty(labels.shape)
            for train, test in check_cv(self.cv, labels, classifier=True).split(X, labels):
                part, own = _safe_split(estimator, X, labels, train)
                params = {} if weights is None or not used else {"sample_weight": weights[train]}
                fitted = clone(estimator).fit(part, own, **params)
                self.response_ = response_of(fitted, self.response)
                held_out, _ = _safe_split(estimator, X, labels, test)
                scores[test], self.returns_list_ = self._scores(fitted, held_out)
            params = {} if weights is None or not used else {"sample_weight": weights}
            self.estimator_ = clone(estimator).fit(X, labels, **params)
        multi = self._wrapped(scores, labels, weights)
        self.calibrator_ = MultiLabelCalibrator.fit(multi, calibrator=self.calibrator)
        return self

    @property
    def classes_(self) -> Any:
        """Classes as the classifier has them: an array, or a list of an array for each label."""
        return self.estimator_.classes_

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        """Calibrated probabilities: (n, k), or a list of k arrays (n, 2) if the classifier's are.

        As forests, nearest neighbours and `MultiOutputClassifier` return lists,
        `OneVsRestClassifier`, `ClassifierChain` and `MLPClassifier` arrays.
        """
        probs = self._calibrated(X).probs.numpy()
        return [np.stack([1 - p, p], 1) for p in probs.T] if self.returns_list_ else probs

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The labels whose calibrated probability is at least 1/2, (n, k) of 0 and 1."""
        return np.asarray((self._calibrated(X).logits >= 0).long().numpy())

    def _estimator(self) -> Any:
        default = OneVsRestClassifier(LogisticRegression())
        return default if self.estimator is None else self.estimator

    def _calibrated(self, X: Any) -> MultiLabel:  # noqa: N803
        check_is_fitted(self)
        scores, _ = self._scores(self.estimator_, X)
        return self._wrapped(scores, np.zeros(scores.shape), None).map(self.calibrator_)

    def _scores(self, fitted: Any, X: Any) -> tuple[np.ndarray, bool]:  # noqa: N803
        """Scores of the labels, (n, k), and whether the classifier returned a list."""
        given = scores_of(fitted, X, self.response_)
        if not isinstance(given, list):
            return np.asarray(given, dtype=np.float64), False
        pairs = zip(given, fitted.classes_, strict=True)
        return np.stack([_positive(scores, classes) for scores, classes in pairs], 1), True

    def _wrapped(
        self, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
    ) -> MultiLabel:
        if scores.shape != (len(scores), self.n_labels_):
            raise ValueError(
                f"{self.response_} of the classifier must have a column for each of "
                f"{self.n_labels_} labels, got {scores.shape}"
            )
        make = MultiLabel if RESPONSES[self.response_] == "logits" else MultiLabel.from_probs
        return make(scores, labels, weights=weights)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._estimator()).input_tags
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.classifier_tags.multi_label = True
        return tags


def _indicator(y: Any) -> np.ndarray:
    """An indicator matrix, dense, of at least two labels."""
    labels = np.asarray(y.toarray() if hasattr(y, "toarray") else y, dtype=np.float64)
    if labels.ndim != 2 or labels.shape[1] < 2:
        raise ValueError(
            f"y must be an indicator matrix (n, k) of 2 or more labels, got {labels.shape}; use "
            "CalibratedClassifier for one label"
        )
    return labels


def _positive(scores: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Probability of 1 of one label; a label of one class in training has a single column."""
    held = list(classes)
    return scores[:, held.index(1)] if 1 in held else np.zeros(len(scores))
