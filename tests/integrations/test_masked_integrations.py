"""Classes masked by a logit of -inf, in scikit-learn and torchmetrics."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.integrations.sklearn import PosthocCalibrator
from calibrant.integrations.torchmetrics import ECE, MCE, RMSCE, AdaptiveECE, ClasswiseECE


def masked_examples(n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Answers to questions with one to four options."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(n, 4)) * 3
    options = generator.integers(1, 5, n)[:, None]
    logits[generator.permuted(np.tile(np.arange(4), (n, 1)), axis=1) >= options] = -np.inf
    return logits, (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)


@pytest.mark.parametrize("method", ["temperature", "vector", "platt"])
def test_a_scikit_learn_calibrator_gives_masked_classes_probability_zero(method):
    logits, labels = masked_examples()
    found = PosthocCalibrator(method).fit(logits, labels)
    probs = found.predict_proba(logits)
    assert (probs[logits == -np.inf] == 0).all()
    np.testing.assert_allclose(probs.sum(1), 1)
    assert found.score(logits, labels) > 0.5


def test_scikit_learn_refuses_invalid_logits():
    labels = masked_examples()[1]
    for bad, kind in ((np.nan, "logits"), (np.inf, "logits"), (-np.inf, "features")):
        wrong = np.where(np.arange(len(labels))[:, None] == 3, bad, 0.0) + np.zeros((1, 4))
        with pytest.raises(ValueError, match=r"NaN|inf"):
            PosthocCalibrator(kind=kind).fit(wrong, labels)


@pytest.mark.parametrize(
    ("metric", "plain"),
    [
        (ECE(kind="logits"), metrics.ece),
        (RMSCE(kind="logits"), metrics.rmsce),
        (MCE(kind="logits"), metrics.mce),
        (AdaptiveECE(kind="logits"), metrics.adaptive_ece),
        (ClasswiseECE(kind="logits", classes=4), metrics.classwise_ece),
    ],
    ids=lambda each: type(each).__name__,
)
def test_torchmetrics_treats_masked_classes_as_probability_zero(metric, plain):
    logits, labels = masked_examples()
    metric.update(torch.from_numpy(logits), torch.from_numpy(labels))
    tolerance = 5e-3 if isinstance(metric, AdaptiveECE) else 1e-12
    assert float(metric.compute()) == pytest.approx(
        plain(Predictions(logits, labels)), abs=tolerance
    )
