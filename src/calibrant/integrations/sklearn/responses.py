"""How a classifier gives its scores: as margins, logits or probabilities."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline

# Methods of a classifier that return scores, and what these are.
RESPONSES = {"margin": "logits", "decision_function": "logits", "predict_proba": "probs"}


class Margin(NamedTuple):
    """The method and option by which a library of boosted trees gives raw scores."""

    method: str
    option: str


# Their probabilities are clipped, or do not sum to 1 with one-versus-rest objectives.
MARGINS = {"lightgbm": Margin("predict_proba", "raw_score")}
MARGINS["xgboost"] = Margin("predict", "output_margin")


def response_of(estimator: Any, given: str) -> str:
    """The response to use: as given, or the first of `RESPONSES` that the classifier has."""
    if given not in ("auto", *RESPONSES):
        raise ValueError(f"response must be auto or one of {', '.join(RESPONSES)}, got {given!r}")
    tried = [*RESPONSES] if given == "auto" else [given]
    for name in tried:
        if hasattr(estimator, name) if name != "margin" else _margin(estimator) is not None:
            return name
    raise ValueError(f"{type(estimator).__name__} has no {' and no '.join(tried)}")


def scores_of(estimator: Any, X: Any, response: str) -> Any:  # noqa: N803, scikit-learn's name
    """Scores of a fitted classifier, (n,) or (n, k)."""
    margin, classifier = _margin(estimator), last_step(estimator)
    if (
        response == "decision_function"
        and getattr(classifier, "decision_function_shape", None) == "ovo"
        and len(classifier.classes_) > 2
    ):
        raise ValueError(
            f"scores of {type(classifier).__name__} are of pairs of classes: "
            "set decision_function_shape='ovr'"
        )
    if response != "margin" or margin is None:
        return getattr(estimator, response)(X)
    estimator = _thawed(estimator)
    if isinstance(estimator, Pipeline) and len(estimator) > 1:
        X = estimator[:-1].transform(X)  # noqa: N806
    return getattr(classifier, margin.method)(X, **{margin.option: True})


def check_fit_method(estimator: Any) -> None:
    """Refuse what is no classifier of scikit-learn, such as a booster."""
    inner = last_step(estimator)
    if not hasattr(inner, "fit"):
        raise TypeError(
            f"{type(inner).__name__} has no fit: use PosthocCalibrator, or "
            "Predictions.from_binary(margins, y, kind='logits') and a calibrator"
        )


def check_eval_sets(given: dict[str, Any]) -> None:
    """Refuse labels of `eval_set` that are strings, of a classifier that takes class indices."""
    for name, sets in given.items():
        if name.rpartition("__")[2] != "eval_set":
            continue
        for _, labels, *_ in sets or ():
            if np.asarray(labels).dtype.kind in "OUST":
                raise ValueError(
                    "labels in eval_set are strings: give class indices, such as "
                    "np.unique(labels, return_inverse=True)[1]"
                )


def takes_indices(estimator: Any) -> bool:
    """Whether the classifier takes class indices as labels, and nothing else."""
    return _library(estimator) == "xgboost"


def last_step(estimator: Any) -> Any:
    """The classifier itself, without the pipeline or the freeze around it."""
    estimator = _thawed(estimator)
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _margin(estimator: Any) -> Margin | None:
    return MARGINS.get(_library(estimator))


def _library(estimator: Any) -> str:
    """The library of boosted trees that the classifier, or one it inherits from, belongs to."""
    packages = [kind.__module__.partition(".")[0] for kind in type(last_step(estimator)).__mro__]
    return next((name for name in packages if name in MARGINS), "")


def _thawed(estimator: Any) -> Any:
    return estimator.estimator if isinstance(estimator, FrozenEstimator) else estimator
