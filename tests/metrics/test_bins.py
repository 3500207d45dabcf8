"""Sums per bin: one definition of the edges, and sums that add."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant import BinSums
from calibrant.checks import as_values
from calibrant.data import SYNTHETIC
from calibrant.metrics import adaptive_ece
from calibrant.metrics.bins import bin_edges, bin_index, equal_mass_index

EITHER = pytest.mark.parametrize(
    "make", [BinSums.of_confidence, BinSums.on_grid], ids=["bins", "grid"]
)


def naive_index(confidence, bins):
    """Bin ((b-1)/B, b/B] by looking at every bin in turn."""
    return [
        next(
            b
            for b in range(bins)
            if (b / bins < r or b == 0) and (r <= (b + 1) / bins or b == bins - 1)
        )
        for r in confidence
    ]


@pytest.mark.parametrize("bins", [1, 2, 3, 10, 15, 20, 100])
def test_edges_belong_to_the_bin_below(bins):
    edges = [b / bins for b in range(bins + 1)]
    nearby = [np.nextafter(e, d) for e in edges for d in (0, 1)]
    values = np.clip(np.array([*edges, *nearby, 0.0, 1.0]), 0, 1)
    assert bin_index(values, bin_edges(bins)).tolist() == naive_index(values, bins)


def test_sums_of_a_small_set_by_hand():
    # Bins of (0, 0.5], (0.5, 1]: {0.5} and {0.6, 1.0}.
    sums = BinSums.of_confidence(np.array([0.5, 0.6, 1.0]), np.array([0.0, 1.0, 1.0]), bins=2)
    assert sums.count.tolist() == [1, 2]
    assert sums.confidence.tolist() == [0.5, 1.6]
    assert sums.correct.tolist() == [0, 2]
    assert sums.gap.tolist() == pytest.approx([0.5, -0.2])
    assert sums.ece == pytest.approx((0.5 + 0.4) / 3)
    assert sums.mce == pytest.approx(0.5)
    assert sums.rmsce == pytest.approx(((0.25 + 2 * 0.04) / 3) ** 0.5)


def confidences(n, seed):
    generator = np.random.default_rng(seed)
    confidence = 1 - generator.beta(0.3, 2, n)
    return confidence, (generator.random(n) < confidence).astype(np.float64)


@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 3000), max_size=6))
@EITHER
def test_any_partition_in_any_order_adds_up_to_the_whole(make, seed, cuts):
    confidence, correct = confidences(3000, seed)
    whole = make(confidence, correct)
    order = np.random.default_rng(seed).permutation(3000)
    parts = [make(confidence[i], correct[i]) for i in np.split(order, sorted(cuts)) if len(i)]
    total = parts[0]
    for part in parts[1:]:
        total = part + total
    assert np.array_equal(total.count, whole.count)
    assert np.array_equal(total.correct, whole.correct)
    np.testing.assert_allclose(total.confidence, whole.confidence, rtol=1e-12)


@EITHER
def test_arrays_tensors_and_lists_give_the_same_sums(make):
    confidence, correct, weights = [0.5, 0.75, 1.0], [0, 1, 1], [1, 2, 3]
    expected = make(*(np.array(v, dtype=float) for v in (confidence, correct)), weights=weights)
    read_only = np.array(confidence, dtype=np.float32)
    read_only.flags.writeable = False
    for sums in (
        make(confidence, correct, weights=weights),
        make(read_only, np.array(correct, dtype=bool), weights=np.array(weights)),
        make(torch.tensor(confidence, requires_grad=True), torch.tensor(correct), weights=weights),
        make(torch.tensor(confidence).bfloat16(), correct, weights=torch.tensor(weights)),
    ):
        for part in ("count", "confidence", "correct"):
            assert np.array_equal(getattr(sums, part), getattr(expected, part))


@EITHER
def test_an_empty_batch_adds_nothing_and_rounding_above_one_is_allowed(make):
    total = make([], []) + make([1 + 1e-7], [1])
    assert total.count.sum() == 1


def test_float64_is_not_copied():
    values = np.array([0.5, 1.0])
    for given_values in (values, values[::-1], torch.from_numpy(values)):
        assert np.shares_memory(as_values("confidence", given_values, high=1), values)


def test_long_sums_keep_twelve_digits():
    confidence, correct = confidences(1_000_000, 0)
    sums = BinSums.of_confidence(confidence, correct)
    index = bin_index(confidence, bin_edges(15))
    exact = [math.fsum(confidence[index == b]) for b in range(15)]
    np.testing.assert_allclose(sums.confidence, exact, rtol=1e-13)


def test_a_stream_of_batches_gives_the_sums_of_all():
    p = SYNTHETIC["wavy"].sample(5000, seed=0).predictions
    batches = (p.take(range(start, min(start + 700, 5000))) for start in range(0, 5000, 700))
    stream, whole = BinSums.of_stream(batches), BinSums.of(p)
    assert np.array_equal(stream.count, whole.count)
    np.testing.assert_allclose(stream.confidence, whole.confidence, rtol=1e-12)
    assert stream.ece == pytest.approx(whole.ece, abs=1e-14)


def test_sums_over_different_bins_do_not_add():
    with pytest.raises(ValueError, match="different bins"):
        BinSums.zero(10) + BinSums.zero(15)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40), bins=st.integers(1, 12))
def test_equal_mass_bins_are_those_of_array_split_with_ties_kept_together(sizes, bins):
    first_position = np.cumsum([0, *sizes[:-1]])
    split = np.array_split(np.arange(sum(sizes)), bins)
    expected = [
        next(b for b, part in enumerate(split) if position in part) for position in first_position
    ]
    assert equal_mass_index(np.array(sizes, dtype=np.float64), bins).tolist() == expected


@pytest.mark.parametrize("name", ["overconfident", "wavy", "saturated", "tempered"])
def test_adaptive_bins_of_a_stream_are_close_to_those_of_a_sort(name):
    p = SYNTHETIC[name].sample(200_000, seed=1).predictions
    confidence, correct = p.confidence.numpy(), p.correct.numpy()
    total = BinSums.on_grid(confidence[:70_000], correct[:70_000]) + BinSums.on_grid(
        confidence[70_000:], correct[70_000:]
    )
    sums = total.equal_mass(15)
    assert (sums.count > 0).all()
    assert sums.count.max() / sums.count.min() < 1.1
    assert sums.ece == pytest.approx(adaptive_ece(p, bins=15), abs=5e-4)


def test_the_grid_is_finest_near_zero_and_one():
    values = 1 - np.array([0.0, 1e-7, 2e-7, 1e-5, 1.1e-5, 0.01, 0.0101, 0.3])
    index = np.flatnonzero(BinSums.on_grid(values, np.ones(8)).count)
    assert len(index) == 8


def test_the_grid_is_in_the_order_of_confidence():
    confidence = np.sort(np.concatenate([np.linspace(0, 1, 501), [1e-9, 1 - 1e-9]]))
    cells = [int(np.argmax(BinSums.on_grid(c[None], np.ones(1)).count)) for c in confidence]
    assert cells == sorted(cells)


def test_invalid_edges_and_weights_are_refused():
    for edges, words in (
        ([0.1, 1.0], r"must cover \[0, 1\], got 0.1 to 1"),
        ([0.0, 0.5, 0.4, 1.0], "must increase, got 0.5 then 0.4"),
        ([0.0], "at least two"),
    ):
        with pytest.raises(ValueError, match=words):
            bin_edges(edges)
    with pytest.raises(ValueError, match="weights must sum"):
        BinSums.of_confidence([0.5] * 3, [1] * 3, weights=[0, 1e308, 1e308])
