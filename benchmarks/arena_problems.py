"""The problems of the arena: predictions to calibrate and to test, in groups and two halves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks import arena_tables
from benchmarks.dataset_table import PLANS, SEED, trained
from benchmarks.real_data import DATA
from calibrant import Predictions, data

# Choices of calibrant (which calibrators, settings of `select` and of the blend) were made on
# these tables and on every other file of logits; results are reported on the rest.
CHOSEN_ON = (
    "lending_club",
    "HealthInsurance",
    "Fertility2",
    "diamonds",
    "InstEval",
    "stackoverflow",
)
GROUPS = {
    "tables-2": "binary tables",
    "tables-k": "tables of 3 to 9 classes",
    "images-2": "images and text of 2 classes",
    "images-10": "images, text and masks of 4 to 20 classes",
    "images-100": "images of 100 classes",
}
# Examples for the fit; None is all.
SIZES = (100, 300, 1000, None)
# Largest test set.
TESTED = 5000
# Classes of CIFAR-10 that are told from the rest in problems of two classes.
ONE = {"airplane": 0, "cat": 3, "dog": 5, "ship": 8}
SHIFTS = {
    "akamaster_c10_resnet20": (
        "noise0p04",
        "noise0p08",
        "contrast0p4",
        "contrast0p2",
        "blur0p7",
        "blur1p2",
    ),
    "labelshift_c10_vgg": ("shiftedtest",),
}
# Files with an own validation split.
OWN = {"kangsepp_densenet40_c10": ("val", "test")}
FIRST = {"labelshift_c10_vgg": "valid"}
# Trained here, by the plans of `make datasets`; never used for choices.
TRAINED = ("20news", "agnews", "trec", "sst5", "camvid")


@dataclass(frozen=True)
class Problem:
    """Predictions of one model, cut in two."""

    name: str
    group: str
    chosen_on: bool
    fit: Predictions
    test: Predictions
    shifted: dict[str, Predictions]

    @property
    def half(self) -> str:
        """What the problem serves for."""
        return "choices" if self.chosen_on else "report"


def problems() -> Iterator[Problem]:
    """All that are there, one after the other."""
    yield from tables()
    yield from own_tables()
    yield from files()
    yield from networks()


def tables() -> Iterator[Problem]:
    """Twelve tables, four models each."""
    path = DATA / "tabular_A.npz"
    if not path.exists():
        return
    with np.load(path) as given:
        for key in sorted(given.files):
            if not key.endswith("/val_probs"):
                continue
            name = key.removesuffix("/val_probs")
            table = name.split("/")[0]
            fit, test = (
                Predictions.from_probs(
                    given[f"{name}/{part}_probs"].astype(np.float64),
                    given[f"{table}/{part}_labels"].astype(np.int64),
                )
                for part in ("val", "test")
            )
            group = "tables-2" if fit.classes == 2 else "tables-k"
            yield Problem(name, group, table.split(".")[0] in CHOSEN_ON, fit, test, {})


def own_tables() -> Iterator[Problem]:
    """Public tables, four models each."""
    for chosen_on, given in ((True, arena_tables.FOR_CHOICES), (False, arena_tables.FOR_REPORT)):
        for each in given:
            for model, found in arena_tables.predicted(each):
                fit, test = (
                    Predictions.from_probs(found[part], found[f"{part}_labels"])
                    for part in ("val", "test")
                )
                group = "tables-2" if fit.classes == 2 else "tables-k"
                name = f"{each.name}.{each.label}/{model}"
                yield Problem(name, group, chosen_on, fit, test, {})


def files(*, against: Mapping[str, int] = ONE) -> Iterator[Problem]:
    """Logits of published networks; of ten classes also as some classes against the rest."""
    for at, path in enumerate(sorted(DATA.glob("logits_*.npz"))):
        name = path.stem.removeprefix("logits_")
        with np.load(path) as given:
            splits = {
                key.removeprefix("logits_"): Predictions(
                    given[key].astype(np.float64),
                    given[key.replace("logits_", "labels_")].astype(np.int64),
                )
                for key in given.files
                if key.startswith("logits_")
            }
        if name in OWN:
            fit, test = (splits[part] for part in OWN[name])
        else:
            fit, test = splits[FIRST.get(name, "test")].split(0.5, seed=0)
        shifted = {split: splits[split] for split in SHIFTS.get(name, ())}
        group = {2: "images-2", 10: "images-10", 100: "images-100"}[fit.classes]
        yield Problem(name, group, at % 2 == 0, fit, _first(test), shifted)
        for label, index in against.items() if fit.classes == 10 else ():
            two = [against_rest(each, index) for each in (fit, _first(test))]
            yield Problem(f"{name} {label}", "images-2", at % 2 == 0, *two, {})


def networks() -> Iterator[Problem]:
    """Small networks of our own on text and on masks; validation and test predictions."""
    for name in TRAINED:
        try:
            splits = data.load(name, SEED, **PLANS[name].options)
        except FileNotFoundError:
            continue
        run = trained(name, PLANS[name], splits)
        fit, test = run.val, run.test
        if fit.groups is not None:
            # One pixel in a hundred: neighbours say the same.
            fit, test = (_spread(each) for each in (fit, test))
        yield Problem(f"{name} {PLANS[name].model}", "images-10", False, fit, _first(test), {})


def against_rest(predictions: Predictions, index: int) -> Predictions:
    """Tell one class from all others."""
    odds = predictions.log_probs.double().numpy()
    rest = np.delete(odds, index, axis=1)
    top = rest.max(1)
    against = top + np.log(np.exp(rest - top[:, None]).sum(1))
    own = predictions.labels.numpy() == index
    return Predictions(np.stack([against, odds[:, index]], 1), own.astype(np.int64))


def _first(predictions: Predictions) -> Predictions:
    return predictions.take(np.arange(min(TESTED, len(predictions))))


def _spread(predictions: Predictions) -> Predictions:
    chosen = np.random.default_rng(0).permutation(len(predictions))[: 2 * TESTED]
    return Predictions(predictions.logits[chosen], predictions.labels[chosen])
