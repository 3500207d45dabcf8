"""Columns as features of trees: numbers as they are, categories in the order of their error."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from calibrant.example_columns import ExampleColumn
from calibrant.shapes import Values

Attributes = Float64[np.ndarray, "n columns"]

# Categories of a column beyond it, the rarest, count as missing.
MOST_CATEGORIES, MOST_CHARACTERS = 1000, 200
# Variance that is added to that of a category: rare ones stay in the middle of the order.
PRIOR = 5.0


@dataclass(frozen=True)
class ColumnCode:
    """How a column becomes a feature.

    Attributes:
        name: of the column.
        categories: in the order of their codes 0, 1, ...; None if the column is numeric. Other
            values are missing.
    """

    name: str
    categories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        categories = self.categories or ()
        if len(categories) > MOST_CATEGORIES or len(set(categories)) < len(categories):
            raise ValueError(f"{self.name}: at most {MOST_CATEGORIES:,} different categories")
        for text in (self.name, *categories):
            if not 0 < len(text) <= MOST_CHARACTERS or not text.isprintable():
                raise ValueError(
                    f"names and categories must be printable, with 1 to {MOST_CHARACTERS} "
                    f"characters, got {text[:40]!r}"
                )


def codes_of(
    columns: Sequence[ExampleColumn], residual: np.ndarray, variance: np.ndarray, weights: Values
) -> tuple[ColumnCode, ...]:
    """Order the categories of each column by their shrunk mean residual.

    One split of the ordered codes then finds the best split of the categories in two. Of k > 2
    classes, the order is that along the first principal component of the residuals.

    Args:
        columns: attributes of the examples.
        residual: label minus probability, (n, outputs).
        variance: p (1 - p), (n, outputs).
        weights: (n,).
    """
    found = []
    for column in columns:
        if column.is_numeric:
            found.append(ColumnCode(column.name))
            continue
        texts = np.array(["" if each is None else each for each in column.texts], dtype=object)
        names, at = np.unique(texts[texts != ""], return_inverse=True)
        known = texts != ""
        own, mass = weights[known], np.bincount(at, weights[known])
        means = np.column_stack(
            [
                np.bincount(at, own * r) / (np.bincount(at, own * v) + PRIOR)
                for r, v in zip(residual[known].T, variance[known].T, strict=True)
            ]
        )
        frequent = np.sort(np.argsort(-mass, kind="stable")[:MOST_CATEGORIES])
        means = means[frequent]
        _, _, axes = np.linalg.svd(means - means.mean(0), full_matrices=False)
        order = np.argsort(means @ axes[0], kind="stable")
        found.append(ColumnCode(column.name, tuple(str(n) for n in names[frequent][order])))
    return tuple(found)


def coded(columns: Sequence[ExampleColumn], codes: Sequence[ColumnCode]) -> Attributes:
    """The features of the examples, (n, d); NaN for missing and unseen values."""
    by_name = {column.name: column for column in columns}
    absent = [code.name for code in codes if code.name not in by_name]
    if absent:
        raise ValueError(f"no column {absent[0]!r}; columns are {', '.join(by_name)}")
    features = []
    for code in codes:
        column = by_name[code.name]
        if code.categories is None:
            features.append(column.numbers)
            continue
        place: dict[str | None, float] = {text: at for at, text in enumerate(code.categories)}
        places = [place.get(text, np.nan) for text in column.texts]
        features.append(np.array(places, dtype=np.float64))
    return np.column_stack(features)
