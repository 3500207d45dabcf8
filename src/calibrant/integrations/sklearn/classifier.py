"""A classifier followed by a calibrator, as a scikit-learn estimator."""

import warnings
from typing import Any, Literal

import numpy as np
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch, column_or_1d, get_tags, indexable
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import (
    _check_method_params,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from calibrant.integrations.sklearn.calibrated import (
    DEPRECATED,
    CalibratedPredictions,
    checked_name,
    fitted_calibrator,
)
from calibrant.integrations.sklearn.responses import (
    RESPONSES,
    check_eval_sets,
    check_fit_method,
    last_step,
    response_of,
    scores_of,
    takes_indices,
)
from calibrant.integrations.sklearn.scores import as_predictions, numbered, sample_weights
from calibrant.predictions import Predictions


class CalibratedClassifier(MetaEstimatorMixin, CalibratedPredictions):  # type: ignore[misc]
    """A classifier followed by a calibrator.

    A fitted classifier, in `FrozenEstimator` or with `cv="prefit"`, is not refitted, and the
    calibrator is fitted to the examples given to `fit`, which should be held out. Otherwise the
    calibrator is fitted to out-of-fold scores, and the classifier to all examples. This is
    `ensemble=False` of scikit-learn's `CalibratedClassifierCV`: one classifier and one calibrator
    to save and to deploy.

    Args:
        estimator: the classifier; logistic regression if not given.
        calibrator: name of a calibrator, one of `calibrant.calibrators.CALIBRATORS`; "blend"
            combines all, weighted by cross-validation, "auto" selects one.
            With fewer than 100 examples these two are temperature scaling, with a warning.
        cv: number of folds, any `cv` of scikit-learn that tests each example once, or "prefit". A
            number is reduced to the count of the rarest class, or of its groups if `fit` gets
            `groups`, which no fold then splits.
        response: the scores: "margin", raw scores of LightGBM and XGBoost; "decision_function",
            used as logits; or "predict_proba". "auto" is the first of these that exists.
        method: deprecated, use `calibrator`.

    Attributes:
        classes_: labels, one for each column of `predict_proba`.
        calibrator_: the fitted calibrator, to save or export.
        estimator_: the fitted classifier; XGBoost is fitted to class indices, its only labels.
        response_: what the scores are.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        calibrator: str = "blend",
        cv: Any = 5,
        response: Literal["auto", "margin", "decision_function", "predict_proba"] = "auto",
        method: str = DEPRECATED,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.response = response
        self.method = method

    def fit(
        self,
        X: Any,  # noqa: N803, scikit-learn's name
        y: Any,
        sample_weight: Any = None,
        **fit_params: Any,
    ) -> "CalibratedClassifier":
        """Fit the calibrator, and the classifier unless it is prefit.

        Weights are passed to the calibrator, and to the classifier if it supports them.

        Args:
            X: inputs of the classifier.
            y: labels, (n,).
            sample_weight: (n,).
            fit_params: with metadata routing, what the classifier and the splitter request.
                Otherwise `groups` are passed to the splitter, all else to the `fit` of the
                classifier. Values with an entry for each example are split like X.
        """
        estimator = self._estimator()
        check_fit_method(estimator)
        name = checked_name(self)
        validate_data(self, X, skip_check_array=True)
        # Sparse matrices become rows, other containers arrays; frames stay as they are.
        X, y = indexable(X, column_or_1d(y, warn=True))  # noqa: N806
        weights = sample_weights(sample_weight, X)
        self.response_ = response_of(estimator, self.response)
        routed = self._routed(weights, fit_params)
        if takes_indices(estimator):
            check_eval_sets(routed.estimator.fit)
        if self._is_prefit:
            check_is_fitted(estimator)
            self.estimator_ = estimator
            self.classes_, labels = numbered(y, estimator.classes_)
            scores = scores_of(estimator, X, self.response_)
        else:
            self.classes_, labels = numbered(y, None)
            target = labels if takes_indices(estimator) else y
            scores = self._out_of_fold(X, target, labels, routed)
            self.estimator_ = clone(estimator).fit(X, target, **routed.estimator.fit)
        groups = routed.splitter.split.get("groups")
        self.calibrator_ = fitted_calibrator(name, self._wrapped(scores, labels, weights, groups))
        return self

    def get_metadata_routing(self) -> MetadataRouter:
        """What this estimator, its classifier and its splitter request; see scikit-learn."""
        to_fit = MethodMapping().add(caller="fit", callee="fit")
        to_split = MethodMapping().add(caller="fit", callee="split")
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self._estimator(), method_mapping=to_fit)
        return router.add(splitter=self.cv, method_mapping=to_split)

    def _routed(self, weights: np.ndarray | None, given: dict[str, Any]) -> Bunch:
        """What goes to the classifier and what to the splitter."""
        if _routing_enabled():
            return process_routing(self, "fit", sample_weight=weights, **given)
        split = {name: given[name] for name in ("groups",) if name in given}
        fit = {name: value for name, value in given.items() if name not in split}
        if weights is not None and not self._is_prefit:
            estimator = self._estimator()
            step = f"{estimator.steps[-1][0]}__" if isinstance(estimator, Pipeline) else ""
            if has_fit_parameter(last_step(estimator), "sample_weight"):
                fit[f"{step}sample_weight"] = weights
            else:
                name = type(last_step(estimator)).__name__
                warnings.warn(
                    f"{name} takes no sample_weight: only the calibrator uses it", stacklevel=3
                )
        return Bunch(estimator=Bunch(fit=fit), splitter=Bunch(split=split))

    def _out_of_fold(
        self,
        X: Any,  # noqa: N803
        target: np.ndarray,
        labels: np.ndarray,
        routed: Bunch,
    ) -> np.ndarray:
        """Scores of each example by a classifier that was not fitted to it."""
        estimator, parts, order = self._estimator(), [], []
        groups = routed.splitter.split.get("groups")
        folds = check_cv(_folds(self.cv, labels, groups), target, classifier=True)
        for train, test in folds.split(X, target, **routed.splitter.split):
            params = _check_method_params(X, routed.estimator.fit, indices=train)
            fitted = clone(estimator).fit(*_safe_split(estimator, X, target, train), **params)
            if len(fitted.classes_) < len(self.classes_):
                raise ValueError(
                    f"the training part of a fold holds {len(fitted.classes_)} of "
                    f"{len(self.classes_)} classes: use stratified folds, or fewer"
                )
            held_out, _ = _safe_split(estimator, X, target, test, train)
            parts.append(scores_of(fitted, held_out, self.response_))
            order.append(test)
        place = np.concatenate(order)
        if not np.array_equal(np.sort(place), np.arange(len(target))):
            raise ValueError("cv must test each example exactly once, as KFold does")
        return np.asarray(np.concatenate(parts)[np.argsort(place)])

    @property
    def _is_prefit(self) -> bool:
        prefit = isinstance(self.cv, str) and self.cv == "prefit"
        return prefit or isinstance(self.estimator, FrozenEstimator)

    def _estimator(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _known(self, classes: int) -> dict[str, Any]:
        if hasattr(self, "estimator_"):
            return {"classes_": self.classes_}
        estimator = self._estimator()
        if not self._is_prefit:
            raise ValueError(
                "only the calibrator is in the file: pass a fitted classifier in FrozenEstimator"
            )
        check_is_fitted(estimator)
        return {
            "classes_": np.asarray(estimator.classes_),
            "estimator_": estimator,
            "response_": response_of(estimator, self.response),
        }

    def _predictions(self, X: Any) -> Predictions:  # noqa: N803
        # The classifier itself validates the features.
        return self._wrapped(scores_of(self.estimator_, X, self.response_))

    def _wrapped(self, scores: np.ndarray, *given: Any) -> Predictions:
        return as_predictions(scores, RESPONSES[self.response_], self.classes_, *given)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._estimator()).input_tags
        return tags


def _folds(cv: Any, labels: np.ndarray, groups: Any) -> Any:
    if not isinstance(cv, int):
        return cv
    units = (
        labels if groups is None else [label for label, _ in set(zip(labels, groups, strict=True))]
    )
    rarest = int(np.bincount(units).min())
    if rarest < 2:
        what = "examples" if groups is None else "groups"
        raise ValueError(f"cross-validation needs at least 2 {what} of every class; use more")
    count = min(cv, rarest)
    return count if groups is None else StratifiedGroupKFold(count)
