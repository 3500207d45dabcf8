"""Batch statistics: loops, limits, degenerate batches."""

import math
from itertools import product

import pytest
import torch
from loss_batches import batch
from torch.testing import assert_close

from calibrant import Predictions, metrics
from calibrant.losses import dca, dece, mdca, mmce, sece, weighted_mmce
from calibrant.losses.sece import smooth_gap


def top(logits, labels):
    confidence, predicted = logits.softmax(1).max(1)
    return confidence.tolist(), (predicted == labels).double().tolist()


def kernel(a, b, width=0.4):
    return math.exp(-abs(a - b) / width)


@pytest.mark.parametrize("width", [0.4, 0.05])
def test_mmce_equals_a_double_loop(width):
    logits, labels = batch(25, 3)
    r, c = top(logits, labels)
    pairs = [(i, j) for i in range(25) for j in range(25)]
    square = sum((c[i] - r[i]) * (c[j] - r[j]) * kernel(r[i], r[j], width) for i, j in pairs) / 625
    assert_close(mmce(logits, labels, width=width).item(), math.sqrt(square))
    assert_close(mmce(logits, labels, width=width, form="public_code").item(), square)


@pytest.mark.parametrize("form", ["paper", "public_code"])
@pytest.mark.parametrize("statistic", [mmce, weighted_mmce])
@pytest.mark.parametrize("rest", [[5.0, 0.0], [0.0, 5.0]])
def test_nan_stays_nan_where_all_others_are_correct_or_wrong(statistic, form, rest):
    logits = torch.tensor([[math.nan, 0.0], rest, rest])
    assert statistic(logits, torch.zeros(3, dtype=torch.int64), form=form).isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1e-9, 1e-46, 1e-300])
def test_narrow_kernels_pair_each_example_with_itself_alone(dtype, width):
    logits = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([0, 1, 1])
    confidence, predicted = logits.float().softmax(1).max(1)
    gap = (predicted == labels).float() - confidence
    value = mmce(logits, labels, width=width)
    assert_close(value.float(), gap.square().sum().sqrt() / 3)
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


def test_weighted_mmce_equals_loops_over_three_kinds_of_pairs():
    logits, labels = batch(25, 3)
    r, c = top(logits, labels)
    right = [v for v, hit in zip(r, c, strict=True) if hit]
    wrong = [v for v, hit in zip(r, c, strict=True) if not hit]
    m, n = len(right), len(wrong)
    cc = sum((1 - a) * (1 - b) * kernel(a, b) for a in right for b in right)
    ii = sum(a * b * kernel(a, b) for a in wrong for b in wrong)
    ci = sum((1 - a) * b * kernel(a, b) for a in right for b in wrong)
    paper = math.sqrt(cc / m**2 + ii / n**2 - 2 * ci / (m * n))
    assert_close(weighted_mmce(logits, labels).item(), paper)
    twice = (
        cc / m**2 / (m**2 + 1e-5) + ii / n**2 / (n**2 + 1e-5) - 2 * ci / (m * n) / (m * n + 1e-5)
    )
    code = weighted_mmce(logits, labels, form="public_code").item()
    assert_close(code, math.sqrt(twice + 1e-10))


def test_mmce_is_zero_without_gradient_for_perfect_or_one_sided_batches():
    logits, _ = batch(25, 3)
    sure = 1e4 * torch.eye(3)
    cases = [(mmce, sure, torch.arange(3), "paper")]
    for form, labels in product(("paper", "public_code"), (logits.argmax(1), logits.argmin(1))):
        cases.append((weighted_mmce, logits, labels, form))
    for statistic, scores, labels, form in cases:
        scores = scores.clone().requires_grad_()
        value = statistic(scores, labels, form=form)
        value.backward()
        assert value == 0
        assert (scores.grad == 0).all()


def test_dca_and_mdca_equal_loops_and_absent_classes_count():
    logits, labels = batch(25, 3)
    r, c = top(logits, labels)
    assert_close(dca(logits, labels).item(), abs(sum(r) - sum(c)) / 25)
    p = logits.softmax(1).tolist()
    gaps = [
        abs(sum(row[j] for row in p) / 25 - sum(y == j for y in labels.tolist()) / 25)
        for j in range(3)
    ]
    assert_close(mdca(logits, labels).item(), sum(gaps) / 3)
    # One example of class 0: class 0 has a gap of 1 - p, the two absent classes of p.
    logits = torch.tensor([[0.0, 0.0, 0.0]], dtype=torch.float64)
    assert_close(mdca(logits, torch.tensor([0])).item(), (2 / 3 + 1 / 3 + 1 / 3) / 3)


@pytest.mark.parametrize("form", ["paper", "public_code"])
def test_dece_equals_a_loop_over_bins(form):
    logits, labels = batch(25, 3)
    bins, temperature, scale = 6, 0.07, 5.0
    value = dece(
        logits, labels, bins=bins, bin_temperature=temperature, rank_scale=scale, form=form
    )
    r, _ = top(logits, labels)
    accuracy, member = [], []
    for p, y, conf in zip(logits.softmax(1).tolist(), labels.tolist(), r, strict=True):
        rank = 1 + sum(1 / (1 + math.exp(-scale * (p[j] - p[y]))) for j in range(3) if j != y)
        accuracy.append(max(0, 2 - rank))
        raw = [
            math.exp((b * conf - b * (b - 1) / (2 * bins)) / temperature)
            for b in range(1, bins + 1)
        ]
        shares = [v / sum(raw) for v in raw]
        if form == "public_code":
            shares = [(v + 1e-6) / (1 + (bins + 1) * 1e-6) for v in shares]
        member.append(shares)
    total = 0.0
    for b in range(bins):
        mass = sum(row[b] for row in member)
        conf = sum(row[b] * v for row, v in zip(member, r, strict=True)) / mass
        acc = sum(row[b] * v for row, v in zip(member, accuracy, strict=True)) / mass
        total += mass / 25 * abs(acc - conf)
    assert_close(value.item(), total)


@pytest.mark.parametrize("bins", [1, 5, 15])
@pytest.mark.parametrize("seed", [0, 1])
def test_dece_tends_to_ece(bins, seed):
    logits, labels = batch(300, 4, seed=seed)
    value = dece(logits, labels, bins=bins, bin_temperature=1e-9, rank_scale=1e9)
    expected = metrics.ece(Predictions(logits, labels), bins=bins)
    assert_close(value.item(), expected, rtol=0, atol=1e-9)
    soft = dece(logits, labels, bins=bins).item()
    assert soft != pytest.approx(expected, abs=1e-9)


def test_a_calibrated_batch_has_smaller_statistics_than_an_overconfident_one():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(800, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    for statistic in (mmce, dca, dece):
        assert statistic(logits, labels) < 0.5 * statistic(4 * logits, labels)


@pytest.mark.parametrize("form", ["points", "grid"])
def test_repeated_examples_do_not_change_sece(form):
    logits, labels = batch(30, 3, scale=1.0)
    value = sece(logits, labels, form=form)
    assert_close(sece(logits.repeat(2, 1), labels.repeat(2), form=form), value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bandwidth", [1e-9, 1e-30, 1e-300])
def test_narrow_kernels_of_sece_use_each_example_alone(dtype, bandwidth):
    logits, labels = batch(30, 3, scale=1.0)
    logits = logits.to(dtype).requires_grad_()
    confidence, predicted = logits.softmax(1).max(1)
    own = ((predicted == labels).to(dtype) - confidence).abs().mean()
    value = sece(logits, labels, bandwidth=bandwidth)
    assert_close(value, own)
    (gradient,) = torch.autograd.grad(value, logits)
    assert_close(gradient, torch.autograd.grad(own, logits)[0])


def test_sece_on_a_grid_is_the_integral_by_the_trapezoidal_rule():
    # Confidences near 1: the ends of the grid have weight.
    logits, labels = batch(6, 3, scale=1.0)
    logits = 8 * logits
    confidence, predicted = logits.softmax(1).max(1)
    at = torch.linspace(0, 1, 257, dtype=torch.float64)
    kernel = torch.exp(-0.5 * ((at[:, None] - confidence) / 0.25) ** 2)
    density = kernel.sum(1)
    near = (kernel * (predicted == labels)).sum(1) / density
    error = torch.trapezoid(density * (near - at).abs(), at) / torch.trapezoid(density, at)
    assert_close(sece(logits, labels, bandwidth=0.25, form="grid"), error, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["points", "leave_one_out"])
def test_sece_equals_a_loop_over_pairs_of_examples(form, weighted):
    logits, labels = batch(9, 3, scale=1.0)
    confidence, predicted = logits.softmax(1).max(1)
    r, c = confidence.tolist(), (predicted == labels).tolist()
    counts = [1 + i % 3 for i in range(9)] if weighted else [1] * 9
    total = 0.0
    for i in range(9):
        often = [n - (form == "leave_one_out") * (i == j) for j, n in enumerate(counts)]
        near = [n * math.exp(-(((r[i] - v) / 0.1) ** 2) / 2) for n, v in zip(often, r, strict=True)]
        accuracy = sum(w * hit for w, hit in zip(near, c, strict=True)) / sum(near)
        total += counts[i] * abs(accuracy - r[i])
    weights = torch.tensor(counts, dtype=torch.float64) if weighted else None
    hits = (predicted == labels).double()
    found = smooth_gap(confidence, hits, bandwidth=0.1, form=form, weights=weights)
    assert_close(found.item(), total / sum(counts))


def test_leave_one_out_of_one_example_has_no_error_and_no_gradient():
    logits = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value = sece(logits, torch.tensor([0]), form="leave_one_out")
    value.backward()
    assert value == 0
    assert (logits.grad == 0).all()


def test_minimising_sece_corrects_an_overconfident_scale():
    generator = torch.Generator().manual_seed(0)
    true_logits = torch.randn(500, 3, generator=generator)
    labels = torch.multinomial(true_logits.softmax(1), 1, generator=generator)[:, 0]
    log_scale = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.Adam([log_scale], lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        sece(true_logits * log_scale.exp(), labels, bandwidth=0.05).backward()
        optimizer.step()
    assert abs(log_scale.item()) < 0.2
