"""Two classes: one function of the log-odds, not one for each class divided by their sum."""

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS
from calibrant.calibrators.one_versus_rest import OneVersusRest

# The parameters that have an entry, or a row, for each function.
PER_FUNCTION = {
    "platt": ("coefficients",),
    "beta": ("coefficients",),
    "quadratic": ("coefficients",),
    "spline": ("knots", "values"),
    "isotonic": ("offsets",),
    "centered_isotonic": ("offsets",),
    "kernel": ("knots", "values"),
    "venn_abers": ("offsets",),
    "histogram": ("edges", "values"),
    "scaling_binning": ("coefficients", "edges", "values"),
}


def drawn(classes: int, n: int) -> Predictions:
    """Overconfident in one direction more than in the other."""
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(n, classes))
    true = np.where(logits > 0, 0.8, 0.4) * logits
    return Predictions(logits, (true + generator.gumbel(size=true.shape)).argmax(1))


def test_all_calibrators_of_one_class_against_the_rest_are_named_here():
    found = {name for name, kind in CALIBRATORS.items() if issubclass(kind, OneVersusRest)}
    assert found == set(PER_FUNCTION)


@pytest.mark.parametrize("name", PER_FUNCTION)
def test_two_classes_have_one_function_and_complementary_probabilities(name):
    data = drawn(2, 1500)
    fitted = CALIBRATORS[name].fit(data)
    for classes, functions in ((2, 1), (3, 3)):
        given = fitted if classes == 2 else CALIBRATORS[name].fit(drawn(3, 1500))
        for key in PER_FUNCTION[name]:
            ends = key == "offsets"
            assert len(getattr(given, key)) == functions + ends, (key, classes)
    odds = torch.linspace(-8, 8, 201, dtype=torch.float64)
    # The level of both logits does not matter.
    found = fitted(torch.stack([0 * odds + 3, odds + 3], 1))
    function = fitted.map_odds(odds[:, None])[:, 0]
    torch.testing.assert_close(found[:, 1], logsigmoid(function), atol=1e-12, rtol=0)
    torch.testing.assert_close(found[:, 0], logsigmoid(-function), atol=1e-12, rtol=0)
    # Which of the two is called class 1 does not matter. Splines merge neighbours from below, and
    # kernels take the lower of two middle examples as the median.
    swapped = CALIBRATORS[name].fit(Predictions(data.logits.flip(1), 1 - data.labels))
    again, tolerance = swapped(data.logits.flip(1)).flip(1), 1e-9
    if name in ("spline", "kernel"):
        tolerance = 1e-4
    torch.testing.assert_close(again.exp(), fitted(data.logits).exp(), atol=tolerance, rtol=0)
