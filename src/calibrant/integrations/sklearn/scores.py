"""Scores and labels of scikit-learn as `Predictions`."""

from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from calibrant.predictions import Predictions


def as_predictions(
    scores: Any,
    kind: str,
    classes: np.ndarray,
    labels: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    groups: Any = None,
) -> Predictions:
    """Wrap scores of shape (n, k), or (n,) or (n, 1) of two classes; labels are 0 by default.

    Args:
        scores: logits or probabilities.
        kind: "logits" or "probs".
        classes: the k labels, whose text becomes the class names.
        labels: class index of each example.
        weights: sample weights.
        groups: groups that folds do not split.
    """
    values, k = np.asarray(scores, dtype=np.float64), len(classes)
    columns = 1 if values.ndim == 1 else values.shape[1]
    if columns != (k if k > 2 else columns) or columns > k:
        raise ValueError(
            f"X has {columns} columns of {kind} for {k} classes; expected one for each class "
            "(or pass classes=..., or kind='features' if the columns are not classes)"
        )
    labels = np.zeros(len(values), dtype=np.int64) if labels is None else labels
    given: dict[str, Any] = {"weights": weights, "groups": groups, "class_names": names(classes)}
    if columns == 1:
        one = values.reshape(-1)
        return Predictions.from_binary(one, labels, kind=kind, **given)  # type: ignore[arg-type]
    make = Predictions if kind == "logits" else Predictions.from_probs
    return make(values, labels, **given)


def names(classes: np.ndarray) -> tuple[str, ...]:
    """Labels as text."""
    return tuple(map(str, np.asarray(classes).tolist()))


def numbered(y: np.ndarray, classes: Any) -> tuple[np.ndarray, np.ndarray]:
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


def sample_weights(given: Any, X: Any) -> np.ndarray | None:  # noqa: N803, scikit-learn's name
    """Check sample weights, (n,); weights below 1 on average are no counts: rescale them to 1.

    Zeros stay out of the average, since such examples are absent.
    """
    if given is None:
        return None
    weights = np.asarray(_check_sample_weight(given, X, dtype=np.float64))
    positive = weights[weights > 0]
    mean = positive.mean() if len(positive) else 1.0
    return weights / mean if mean < 1 else weights
