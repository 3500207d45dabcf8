"""Calibrators of other libraries: the same optimum where the method is the same."""

import numpy as np
import pytest

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
)

pytest.importorskip("probmetrics.calibrators")
rivals = pytest.importorskip("benchmarks.posthoc_rivals")
# Of a library that netcal uses, about itself.
pytestmark = pytest.mark.filterwarnings("ignore:independent is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def halves() -> tuple[Predictions, Predictions]:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4000, 6)) * 3
    true = logits @ (np.eye(6) * 0.5 + generator.normal(size=(6, 6)) * 0.05)
    data = Predictions(logits, (true + generator.gumbel(size=true.shape)).argmax(1))
    return data.split(0.5, seed=0)


def score_of(name: str, fit: Predictions, test: Predictions) -> float:
    found = rivals.RIVALS[name](fit.logits.numpy(), fit.labels.numpy())
    return metrics.nll(Predictions.from_probs(found(test.logits.numpy()), test.labels))


@pytest.mark.parametrize(
    ("name", "kind", "tolerance"),
    [
        ("scikit-learn temperature", TemperatureScaling, 1e-6),
        ("netcal temperature", TemperatureScaling, 1e-6),
        ("probmetrics temperature", TemperatureScaling, 1e-6),
        ("probmetrics svs", StructuredVectorScaling, 1e-4),
        ("probmetrics sms", StructuredMatrixScaling, 1e-4),
    ],
)
def test_the_same_method_gives_the_same_score_on_new_examples(halves, name, kind, tolerance):
    fit, test = halves
    ours = metrics.nll(test.map(kind.fit(fit)))
    assert ours == pytest.approx(score_of(name, fit, test), abs=tolerance)


def test_netcal_calls_the_inverse_a_temperature(halves):
    fit, _ = halves
    found = rivals.TemperatureScaling()
    found.fit(rivals.softmax(fit.logits.numpy()), fit.labels.numpy())
    ours = TemperatureScaling.fit(fit).temperature
    assert float(np.squeeze(found.temperature)) == pytest.approx(1 / ours, rel=1e-3)


def test_netcal_does_nothing_for_float32_probabilities(halves):
    fit, _ = halves
    found = rivals.TemperatureScaling()
    found.fit(rivals.softmax(fit.logits.numpy()).astype(np.float32), fit.labels.numpy())
    narrow = Predictions(fit.logits.float(), fit.labels)
    assert float(np.squeeze(found.temperature)) == pytest.approx(1, abs=1e-3)
    assert TemperatureScaling.fit(narrow).temperature > 1.5
