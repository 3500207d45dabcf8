"""Fits that made predictions worse on their own examples are noticed."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibrators import CALIBRATORS, HistogramBinning, TemperatureScaling, fit_remarks
from calibrant.calibrators.base import Fit


def tempered(n: int = 2000, k: int = 3, seed: int = 0, sharper: float = 2.0) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 2
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    return Predictions(logits * sharper, labels)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_parametric_fits_get_no_remark():
    for sharper in (0.5, 1.0, 2.0):
        for name in CALIBRATORS:
            if not CALIBRATORS[name].nonparametric:
                data = tempered(1000, sharper=sharper)
                assert fit_remarks(CALIBRATORS[name].fit(data), data) == (), (name, sharper)


def test_a_rise_of_nll_or_ece_is_told_with_the_numbers():
    data = tempered(sharper=1.0)
    nll, ece = fit_remarks(TemperatureScaling(classes=3, temperature=0.4), data)
    assert nll.startswith("NLL rose from 0.")
    assert nll.endswith("on the data of the fit: do not use this fit")
    assert ece.startswith("ECE rose from 0.0")
    assert "more than sampling noise (debiased +0." in ece
    # Any rise of the NLL is a failure, but this rise of the ECE is noise.
    assert len(fit_remarks(TemperatureScaling(classes=3, temperature=1.02), data)) <= 1


def test_a_fit_that_does_not_minimise_the_nll_says_so():
    data = tempered(200, k=4, sharper=1.0)
    found = fit_remarks(HistogramBinning.fit(data, bins=2), data)
    assert "its functions are fitted separately and do not minimise the NLL" in found[0]


def test_a_fit_that_did_not_converge_says_so():
    origin = Fit(10, "", converged=False, remark="T hit the lower bound 0.05")
    data = tempered(sharper=2.0)
    made = TemperatureScaling(classes=3, temperature=2.0, origin=origin)
    assert fit_remarks(made, data) == ("did not converge: T hit the lower bound 0.05",)
