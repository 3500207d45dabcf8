"""Classwise errors against a loop over classes, bins and examples."""

import math

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.example_stats import CHUNK
from calibrant.metrics import class_sums


def sample(n=400, k=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
    return Predictions(logits.to(dtype), labels)


def loop(p, bins, threshold=0.0):
    probs, labels = p.probs.double().numpy(), p.labels.numpy()
    errors = []
    for c in range(p.classes):
        kept = [i for i in range(len(p)) if probs[i, c] > threshold or threshold == 0]
        total = 0.0
        for b in range(bins):
            inside = [
                i
                for i in kept
                if (probs[i, c] > b / bins or b == 0)
                and (probs[i, c] <= (b + 1) / bins or b == bins - 1)
            ]
            gap = math.fsum(probs[i, c] - (labels[i] == c) for i in inside)
            total += abs(gap) / len(kept)
        errors.append(total)
    return errors


@pytest.mark.parametrize("threshold", [0.0, 0.001, 0.2])
@pytest.mark.parametrize("bins", [1, 4, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_a_loop(threshold, bins, dtype):
    p = sample(dtype=dtype)
    expected = loop(p, bins, threshold)
    found = metrics.per_class_ece(p, bins=bins, threshold=threshold)
    digits = 1e-12 if dtype == torch.float64 else 1e-8  # the loop adds up rounded numbers
    np.testing.assert_allclose(found, expected, atol=digits)
    assert metrics.classwise_ece(p, bins=bins, threshold=threshold) == pytest.approx(
        np.mean(expected), abs=digits
    )


def test_sums_are_exact_across_chunks():
    k = 40
    p = sample(2 * CHUNK // k + 17, k, dtype=torch.float32)
    sums = class_sums(p, bins=10)
    probs = p.probs.double().numpy()
    index = np.clip(np.ceil(probs * 10).astype(int) - 1, 0, 9)
    for c in (0, 17, 39):
        assert np.array_equal(sums.count[c], np.bincount(index[:, c], minlength=10))
        hits = np.bincount(index[p.labels.numpy() == c, c], minlength=10)
        assert np.array_equal(sums.correct[c], hits)
        np.testing.assert_allclose(
            sums.confidence[c], np.bincount(index[:, c], probs[:, c], 10), rtol=1e-8, atol=1e-8
        )


def test_adaptive_equals_the_top_label_error_of_each_class():
    p = sample()
    found = metrics.per_class_ece(p, adaptive=True)
    for c in range(p.classes):
        # P(class c) against "is it c" is a two-class problem; sort it and cut it by hand.
        values, hits = p.probs[:, c].numpy(), (p.labels == c).numpy()
        order = values.argsort()
        gaps = [abs((values[part] - hits[part]).sum()) for part in np.array_split(order, 15)]
        assert found[c] == pytest.approx(sum(gaps) / len(p), abs=1e-12)


def test_entry_one_of_two_classes_is_the_binary_error():
    p = Predictions.from_binary([0.1, 0.1, 0.9, 0.9], [0, 1, 1, 1], kind="probs")
    # Bin (0, 0.5]: |0.2 - 1|; bin (0.5, 1]: |1.8 - 2|; over four examples.
    assert metrics.per_class_ece(p, bins=2)[1] == pytest.approx((0.8 + 0.2) / 4)


def test_an_absent_class_is_excluded_with_a_warning():
    p = sample(k=4)
    extended = Predictions(torch.cat([p.logits, torch.full((len(p), 1), -3.0)], 1), p.labels)
    with pytest.warns(UserWarning, match=r"class 4: no example.*4 of 5 classes used"):
        value = metrics.classwise_ece(extended)
    errors = metrics.per_class_ece(extended)
    assert np.isnan(errors[4])
    assert value == pytest.approx(errors[:4].mean())
