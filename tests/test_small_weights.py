"""Weights that sum to a small number: one warning, about the sum that was given."""

import warnings

import numpy as np
import pytest

from calibrant import MultiLabel, Predictions
from calibrant.calibrators import TemperatureScaling, select

N = 200
GENERATOR = np.random.default_rng(0)
LOGITS, LABELS = GENERATOR.normal(size=(N, 2)), np.arange(N) % 2
WEIGHTS = np.full(N, 0.3 / N)


def of_selection():
    p = Predictions(LOGITS, LABELS, weights=WEIGHTS)
    return select(p, candidates=["identity", "temperature"], folds=3, resamples=20).blend


def of_parts():
    p = Predictions(LOGITS, LABELS, weights=WEIGHTS, class_names=["no", "yes"])
    first, second = p.split(0.5, seed=0)
    Predictions.concat([first, second]).relabelled(1 - LABELS).with_positive("no")
    p.with_class_order(["yes", "no"])
    p.map(TemperatureScaling.fit(first))


def of_several_labels():
    multi = MultiLabel(LOGITS, np.stack([LABELS, 1 - LABELS], 1), weights=WEIGHTS)
    multi.label(0)
    multi.pooled()
    multi.take(np.arange(100)).map(lambda logits: 2 * logits)


@pytest.mark.parametrize("used", [of_selection, of_parts, of_several_labels])
def test_folds_and_parts_do_not_warn_again(used):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        used()
    texts = [str(each.message) for each in caught]
    assert [text for text in texts if "weights sum" in text] == [
        "weights sum to 0.3, but are counts of examples: rescale them to a mean of 1, or AURC, "
        "bins of equal mass and debiased errors change"
    ]


def test_new_weights_warn():
    p = Predictions(LOGITS, LABELS)
    with pytest.warns(UserWarning, match=r"weights sum to 0\.3,"):
        p.reweighted(WEIGHTS)
