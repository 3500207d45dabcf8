"""Calibrators of other libraries: the same optimum where the method is the same."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    EnsembleTemperature,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
)

get_calibrator = pytest.importorskip("probmetrics.calibrators").get_calibrator
rivals = pytest.importorskip("benchmarks.posthoc_rivals")
# Of a library that netcal uses, about itself.
pytestmark = pytest.mark.filterwarnings("ignore:independent is deprecated:DeprecationWarning")


def halves(classes: int, n: int = 4000) -> tuple[Predictions, Predictions]:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(n, classes)) * 3
    mixing = np.eye(classes) * 0.5 + generator.normal(size=(classes, classes)) * 0.05
    true = logits @ mixing
    data = Predictions(logits, (true + generator.gumbel(size=true.shape)).argmax(1))
    return data.split(0.5, seed=0)


def of_library(name: str, fit: Predictions, test: Predictions) -> Predictions:
    found = rivals.RIVALS[name](fit.logits.numpy(), fit.labels.numpy())
    return Predictions.from_probs(found(test.logits.numpy()), test.labels)


@pytest.mark.parametrize("classes", [2, 6])
@pytest.mark.parametrize(
    ("name", "kind", "loss", "probability"),
    [
        ("scikit-learn temperature", TemperatureScaling, 1e-6, 1e-6),
        ("netcal temperature", TemperatureScaling, 1e-6, 2e-5),
        ("probmetrics temperature", TemperatureScaling, 1e-6, 1e-6),
        # Their search stops at a gradient of 1e-5.
        ("probmetrics svs", StructuredVectorScaling, 1e-4, 2e-3),
        ("probmetrics sms", StructuredMatrixScaling, 1e-4, 4e-3),
    ],
)
def test_the_same_method_gives_the_same_probabilities(name, kind, loss, probability, classes):
    fit, test = halves(classes)
    ours, theirs = test.map(kind.fit(fit)), of_library(name, fit, test)
    assert metrics.nll(ours) == pytest.approx(metrics.nll(theirs), abs=loss)
    np.testing.assert_allclose(ours.probs, theirs.probs, atol=probability)


def test_a_uniform_component_is_that_of_probmetrics():
    # Of the three components of ours, probmetrics has two, of fixed weights.
    fit, test = halves(6)
    theirs = get_calibrator("ts-mix").fit(fit.probs.numpy(), fit.labels.numpy())
    n = len(fit)
    ours = EnsembleTemperature(
        classes=6,
        temperature=TemperatureScaling.fit(fit).temperature,
        weights=torch.tensor([n, 0, 1], dtype=torch.float64) / (n + 1),
    )
    np.testing.assert_allclose(
        test.map(ours).probs, theirs.predict_proba(test.probs.numpy()), atol=1e-6
    )
    # The components of ours include this one.
    best = EnsembleTemperature.fit(fit)
    assert metrics.nll(fit.map(best)) <= metrics.nll(fit.map(ours))


def test_netcal_calls_the_inverse_a_temperature():
    fit, _ = halves(6)
    found = rivals.TemperatureScaling()
    found.fit(rivals.softmax(fit.logits.numpy()), fit.labels.numpy())
    ours = TemperatureScaling.fit(fit).temperature
    assert float(np.squeeze(found.temperature)) == pytest.approx(1 / ours, rel=1e-3)


def test_netcal_does_nothing_for_float32_probabilities():
    fit, _ = halves(6)
    found = rivals.TemperatureScaling()
    found.fit(rivals.softmax(fit.logits.numpy()).astype(np.float32), fit.labels.numpy())
    narrow = Predictions(fit.logits.float(), fit.labels)
    assert float(np.squeeze(found.temperature)) == pytest.approx(1, abs=1e-3)
    assert TemperatureScaling.fit(narrow).temperature > 1.5
