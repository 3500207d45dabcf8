"""What replaces probabilities of 0: held-out NLL and ECE of forests and nearest neighbours.

`python -m benchmarks.zero_floors` prints the table of docs/calibrators.md; about two minutes.
"""

import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.pages import table
from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS
from calibrant.data_folder import data_folder

SHOWN = ("temperature", "structured_matrix", "dirichlet", "isotonic")
# What calibrators used before they estimated a floor.
OLD = float(np.finfo(np.float32).tiny)

Halves = tuple[Predictions, Predictions]


def halves(probs: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> Halves:
    """Split predictions at random into equal parts, for fit and evaluation."""
    return Predictions.from_probs(probs, labels).split(0.5, seed=seed)


def news_forest(path: Path) -> Halves:
    """A forest on TF-IDF features of 20 Newsgroups; its predictions of the test documents."""
    with np.load(path) as held:
        arrays = {name: held[name] for name in held.files}

    def texts(split: str) -> list[str]:
        content, ends = arrays[f"text_{split}"].tobytes(), arrays[f"offsets_{split}"]
        return [content[start:end].decode("latin1") for start, end in pairwise(ends)]

    features = TfidfVectorizer(max_features=20_000, sublinear_tf=True)
    train = features.fit_transform(texts("train"))
    forest = RandomForestClassifier(100, random_state=0).fit(train, arrays["y_train"])
    probs = forest.predict_proba(features.transform(texts("test")))
    return halves(probs, arrays["y_test"].astype(np.int64))


def digits(model: object) -> Halves:
    """Predictions of a classifier of 8 x 8 digits that was trained on 40 % of them."""
    x, y = load_digits(return_X_y=True)
    train, rest, labels, others = train_test_split(x, y, test_size=0.6, random_state=0, stratify=y)
    return halves(model.fit(train, labels).predict_proba(rest), others)  # type: ignore[attr-defined]


def tabular(path: Path) -> Iterator[tuple[str, Halves]]:
    """Saved probabilities of forests on tables, where some are 0."""
    with np.load(path) as held:
        for name in held.files:
            if name.endswith("/forest/val_probs") and (held[name] == 0).any():
                task = name.partition("/")[0]
                parts = [
                    Predictions.from_probs(
                        held[f"{task}/forest/{role}_probs"],
                        held[f"{task}/{role}_labels"].astype(np.int64),
                    )
                    for role in ("val", "test")
                ]
                yield f"forest, {task.partition('.')[0]}", (parts[0], parts[1])


def models(data: Path) -> Iterator[tuple[str, Halves]]:
    """Name, examples of the fit and examples of the evaluation."""
    yield "forest, 20 Newsgroups", news_forest(data / "20news_bydate.npz")
    yield "forest, digits", digits(RandomForestClassifier(100, random_state=0))
    yield "10 nearest neighbours, digits", digits(KNeighborsClassifier(10))
    yield from tabular(data / "tabular_A.npz")


def measured(val: Predictions, test: Predictions, name: str) -> str:
    """Held-out NLL and ECE after a calibrator."""
    after = test.map(CALIBRATORS[name].fit(val))
    return f"{metrics.nll(after):.3f}, {metrics.ece(after):.3f}"


def main() -> int:
    """Print the table."""
    warnings.simplefilter("ignore")
    rows = []
    for model, (val, test) in models(data_folder()):
        floors = (OLD, val.estimated_zero_floor)
        found = {
            name: [measured(val.with_zero_floor(floor), test, name) for floor in floors]
            for name in SHOWN
        }
        both = [" → ".join(found[name]) for name in SHOWN]
        rows.append([model, f"{floors[1]:.1g}", f"{metrics.ece(test):.3f}", *both])
    print(table(["model", "floor", "ECE before", *SHOWN], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
