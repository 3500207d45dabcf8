"""Calibrators of other libraries and ours, fitted to the same published logits."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.arena_rivals import ARENA
from benchmarks.pages import table
from benchmarks.posthoc_rivals import RIVALS, Fit
from benchmarks.real_data import load
from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, Calibrator, PlattScaling, VennAbers

# Files with two and with ten classes.
TWO, TEN = "cleanlab_imdb:test", "pytorchcifar10_resnet18:test"
# Examples of the fit, and new ones on which probabilities are compared.
FITTED, COMPARED = 2000, 5000


class Pair(NamedTuple):
    """One calibrator of ours and its reference, with the reason of a difference."""

    ours: str
    theirs: str
    data: str
    reason: str
    fit: Callable[[Predictions], Calibrator] | None = None


STOPS, ONE, PARTS = "its search stops early", "our pseudo-example", "parts are drawn differently"
TIES = "log-odds within the rounding of float32 are tied in ours"
PAIRS = (
    Pair("temperature", "scikit-learn temperature", TEN, ""),
    Pair("temperature", "netcal temperature", TEN, STOPS),
    Pair("temperature", "probmetrics temperature", TEN, ""),
    Pair("structured_vector", "probmetrics svs", TEN, STOPS),
    Pair("structured_matrix", "probmetrics sms", TEN, STOPS),
    Pair("platt", "betacal am", TWO, STOPS),
    Pair("platt", "probmetrics affine", TWO, STOPS),
    Pair(
        "platt, smooth targets",
        "scikit-learn sigmoid",
        TWO,
        "",
        partial(PlattScaling.fit, smooth_targets=True),
    ),
    Pair("quadratic", "probmetrics quadratic", TWO, STOPS),
    Pair("beta", "betacal abm", TWO, STOPS),
    Pair("isotonic", "scikit-learn isotonic", TWO, ONE),
    Pair(
        "centered_isotonic",
        "probmetrics centered isotonic",
        TWO,
        f"{ONE}; linear in the log-odds, not in the probability",
    ),
    Pair("venn_abers", "venn-abers inductive", TWO, TIES),
    Pair("venn_abers, 5 folds", "venn-abers cross", TWO, PARTS, partial(VennAbers.fit, folds=5)),
    Pair("spline", "ml-insights spline", TWO, "another spline and another penalty"),
)


def same_calibrators() -> str:
    """One line for each pair."""
    rows = [
        [f"`{each.ours}`", each.theirs, each.data, *_differences(each), each.reason]
        for each in PAIRS
    ]
    heads = ["calibrator", "other library", "data", "NLL", "largest difference", "reason"]
    return table(heads, rows)


def _differences(pair: Pair) -> list[str]:
    """Difference of the mean log loss, ours minus theirs, and the largest of a probability."""
    whole = load(pair.data)
    order = np.random.default_rng(0).permutation(len(whole))
    fit, test = whole.take(order[:FITTED]), whole.take(order[FITTED : FITTED + COMPARED])
    ours = test.map((pair.fit or CALIBRATORS[pair.ours].fit)(fit)).probs.numpy()
    reference = _of_library(pair.theirs)(fit.logits.numpy(), fit.labels.numpy())
    theirs = reference(test.logits.numpy())
    rows, labels = np.arange(len(test)), test.labels.numpy()
    gap = float(np.log(theirs[rows, labels] / ours[rows, labels]).mean())
    return [f"{gap:+.1e}", f"{np.abs(ours - theirs).max():.1e}"]


def _of_library(name: str) -> Fit:
    return RIVALS[name] if name in RIVALS else ARENA[name].fit
