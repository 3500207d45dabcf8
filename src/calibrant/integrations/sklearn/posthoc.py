"""A calibrator of scores as a scikit-learn estimator."""

from typing import Any, Literal

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import validate_data

from calibrant.integrations.sklearn.calibrated import (
    DEPRECATED,
    CalibratedPredictions,
    checked_name,
    fitted_calibrator,
)
from calibrant.integrations.sklearn.scores import as_predictions, numbered, sample_weights
from calibrant.predictions import Predictions

KINDS = ("logits", "probs", "features")


class PosthocCalibrator(CalibratedPredictions):
    """A calibrator of the scores X of any classifier, one row for each example.

    Args:
        calibrator: name of a calibrator, one of `calibrant.calibrators.CALIBRATORS`; "blend"
            combines all, weighted by cross-validation, "auto" selects one.
        kind: what the columns of X are.
            "logits": one for each class, -inf for masked ones; a single column, or (n,), is the
            log-odds of the second of two classes.
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
        name = checked_name(self)
        # Logits of -inf mask classes; Predictions refuses NaN and inf.
        finite = self.kind != "logits"
        scores, y = validate_data(
            self, self._columns(X), y, dtype=np.float64, ensure_all_finite=finite
        )
        self.classes_, labels = numbered(y, self.classes)
        weights = sample_weights(sample_weight, scores)
        if self.kind == "features":
            if len(np.unique(labels)) < len(self.classes_):
                raise ValueError("kind 'features' needs examples of every class in y")
            self.link_ = LogisticRegression(solver="newton-cholesky", tol=1e-8, max_iter=1000)
            self.link_.fit(scores, labels, sample_weight=weights)
        self.calibrator_ = fitted_calibrator(name, self._wrapped(scores, labels, weights))
        return self

    def _known(self, classes: int) -> dict[str, Any]:
        if self.kind == "features" and not hasattr(self, "link_"):
            raise ValueError("kind 'features' fits a logistic regression, too: call fit first")
        known = np.arange(classes) if self.classes is None else np.asarray(self.classes)
        return {"classes_": getattr(self, "classes_", known)}

    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        finite = self.kind != "logits"
        scores = validate_data(
            self, self._columns(X), dtype=np.float64, reset=False, ensure_all_finite=finite
        )
        return self._wrapped(scores)

    def _columns(self, X: Any) -> Any:  # noqa: N803
        """One column of the scores of class 1, as boosted trees return them, (n,)."""
        return np.reshape(X, (-1, 1)) if self.kind != "features" and np.ndim(X) == 1 else X

    def _wrapped(self, scores: np.ndarray, *labels: np.ndarray | None) -> Predictions:
        kind: str = self.kind
        if kind == "features":
            scores, kind = self.link_.decision_function(scores), "logits"
        return as_predictions(scores, kind, self.classes_, *labels)
