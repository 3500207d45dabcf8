"""Properties of every loss, for all of `LOSSES` and for extreme settings."""

import inspect
import math
from functools import partial
from itertools import product

import pytest
import torch
from loss_batches import OnGpu, batch
from torch.autograd import gradcheck
from torch.testing import assert_close

from calibrant import losses
from calibrant.losses import LOSSES

STATISTICS = {"mmce", "weighted_mmce", "dca", "mdca", "dece", "sece"}
STATISTICS |= {"hard_l1_ace", "soft_l1_ace"}
CASES = {
    **LOSSES,
    "label_smoothing_others": partial(losses.label_smoothing, alpha=0.3, form="public_code"),
    "focal_zero": partial(losses.focal, gamma=0),
    "focal_sharp": partial(losses.focal, gamma=0.5),
    "focal_very_sharp": partial(losses.focal, gamma=0.01),
    "focal_blunt": partial(losses.focal, gamma=30.0),
    "focal_detached": partial(losses.focal, gamma=0.5, detach_weight=True),
    "flsd_lambert": partial(losses.flsd, rule="lambert", thresholds=(0.1, 0.25, 0.5)),
    "dual_focal_sharp": partial(losses.dual_focal, gamma=0.5),
    "dual_focal_very_sharp": partial(losses.dual_focal, gamma=0.01),
    "inverse_focal_sharp": partial(losses.inverse_focal, gamma=0.01),
    "entropy_mean": partial(losses.entropy, alpha=2.0, form="public_code"),
    "logit_norm_1.5": partial(losses.logit_norm, norm=1.5),
    "logit_norm_2": partial(losses.logit_norm, norm=2),
    "logit_norm_50": partial(losses.logit_norm, norm=50),
    "logit_norm_inf": partial(losses.logit_norm, norm=math.inf),
    "margin_smoothing_narrow": partial(losses.margin_smoothing, margin=0.3),
    "cals_phr": partial(losses.cals, margin=0.5, multipliers=0.7, rho=1.3),
    "cals_p2": partial(losses.cals, margin=0.5, multipliers=0.7, rho=1.3, penalty="p2"),
    "cals_p3": partial(losses.cals, margin=0.5, multipliers=0.7, rho=9.0, penalty="p3"),
    "cals_plain": partial(losses.cals, margin=0.0, multipliers=0.7, normalize=False),
    "acls_narrow": partial(losses.acls, margin=0.2, alpha=1.0, rest=1.0),
    "cpc_code": partial(losses.cpc, discrimination=2.0, form="public_code"),
    "mmce_squared": partial(losses.mmce, form="public_code"),
    "mmce_narrow": partial(losses.mmce, width=0.01),
    "weighted_mmce_code": partial(losses.weighted_mmce, form="public_code"),
    "dece_code": partial(
        losses.dece, form="public_code", bins=5, bin_temperature=0.1, rank_scale=3.0
    ),
    "dece_one_bin": partial(losses.dece, bins=1),
    "sece_wide": partial(losses.sece, bandwidth=0.2),
    "sece_squared": partial(losses.sece, bandwidth=0.2, power=2.0),
    "sece_leave_one_out": partial(losses.sece, form="leave_one_out", bandwidth=0.05),
    "hard_l1_ace_few": partial(losses.hard_l1_ace, bins=3),
    "soft_l1_ace_few": partial(losses.soft_l1_ace, bins=3),
    "soft_l1_ace_one": partial(losses.soft_l1_ace, bins=1),
    "nacl_squared": partial(losses.nacl, alpha=1.0, distance="l2"),
    "sece_grid": partial(losses.sece, form="grid", bandwidth=0.1, power=2.0),
}
# With a detached factor: finite differences disagree by design.
DETACHED = {"focal_detached", "acls", "acls_narrow"}
NOT_INVARIANT = {name for name in CASES if name.startswith(("logit_norm", "acls", "nacl"))}
every = pytest.mark.parametrize("name", CASES)


def is_statistic(name):
    return name.startswith(tuple(STATISTICS))


def value_and_gradient(loss, logits, labels):
    logits = logits.clone().requires_grad_()
    value = loss(logits, labels)
    value.mean().backward()
    return value.detach(), logits.grad


@every
def test_the_loss_has_one_value_per_example_or_one_for_the_batch(name):
    logits, labels = batch()
    before = logits.clone(), labels.clone()
    value = CASES[name](logits, labels)
    assert value.shape == (() if is_statistic(name) else (12,))
    assert value.dtype == torch.float64
    assert torch.equal(logits, before[0])
    assert torch.equal(labels, before[1])
    if not is_statistic(name):
        assert_close(CASES[name](logits[3:5], labels[3:5]), value[3:5])


@pytest.mark.parametrize("name", [name for name in CASES if name not in DETACHED])
def test_gradient_matches_finite_differences(name):
    logits, labels = batch(5, 3)
    weights = torch.rand(5, dtype=logits.dtype)
    logits.requires_grad_()
    assert gradcheck(
        lambda z: (CASES[name](z, labels) * weights).sum(), logits, eps=1e-7, atol=1e-5
    )


def extremes():
    """Logits of every scale, and with probabilities that round to zero and one."""
    logits, labels = batch(30)
    for scale in (0, 1e-30, 1, 1e4):
        yield f"scale {scale}", logits * scale, labels
    labels = torch.arange(8) % 4
    predicted = {"correct": labels, "wrong": (labels + 1) % 4, "some": labels.clamp_max(2)}
    for name, gap in product(predicted, (20.0, 120.0, 1e4)):
        one_hot = torch.nn.functional.one_hot(predicted[name], 4)
        yield f"{name}, gap {gap}", gap * one_hot.double(), labels
    yield "one example", *batch(1, 4)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_are_finite_at_every_scale_and_at_probability_zero_and_one(name, dtype):
    for what, logits, labels in extremes():
        value, gradient = value_and_gradient(CASES[name], logits.to(dtype), labels)
        assert value.isfinite().all(), what
        assert gradient.isfinite().all(), what

    for n in (1, 5):
        logits, labels = batch(n, 2)
        if name.startswith("cpc"):
            with pytest.raises(ValueError, match="needs at least 3, got 2"):
                CASES[name](logits, labels)
            continue
        value, gradient = value_and_gradient(CASES[name], logits, labels)
        assert value.isfinite().all(), f"{n} examples of two classes"
        assert gradient.isfinite().all(), f"{n} examples of two classes"


@every
def test_losses_are_invariant_to_order_of_examples_and_classes_and_to_adding_a_constant(name):
    logits, labels = batch(20)
    value = CASES[name](logits, labels)
    order = torch.randperm(20)
    moved = CASES[name](logits[order], labels[order])
    assert_close(moved, value if is_statistic(name) else value[order])
    order = torch.randperm(4)
    assert_close(CASES[name](logits[:, order], order.argsort()[labels]), value)
    if name in NOT_INVARIANT:
        assert (CASES[name](logits + 20, labels) - value).abs().min() > 0.1
    else:
        constant = torch.linspace(-9, 9, len(logits), dtype=logits.dtype)[:, None]
        assert_close(CASES[name](logits + constant, labels), value)


@every
def test_half_precision_is_computed_in_float32_and_autocast_changes_nothing(name):
    for dtype in (torch.bfloat16, torch.float16):
        logits, labels = batch(20, dtype=dtype)
        value, gradient = value_and_gradient(CASES[name], logits, labels)
        expected, exact = value_and_gradient(CASES[name], logits.float(), labels)
        assert value.dtype == torch.float32
        assert_close(value, expected, rtol=1e-6, atol=1e-7)
        assert gradient.dtype == dtype
        # Rounded once, at the end.
        eps = torch.finfo(dtype).eps
        assert_close(gradient.float(), exact, rtol=eps, atol=1e-7)
    logits, labels = batch(20, dtype=torch.float32)
    expected, exact = value_and_gradient(CASES[name], logits, labels)
    with torch.autocast("cpu", torch.bfloat16):
        value, gradient = value_and_gradient(CASES[name], logits, labels)
    assert_close(value, expected, rtol=1e-6, atol=1e-6)
    assert_close(gradient, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("name", LOSSES)
def test_invalid_labels_and_shapes_raise(name):
    loss = LOSSES[name]
    logits, labels = batch()
    for dtype in (torch.int32, torch.int16):
        assert_close(loss(logits, labels.to(dtype)), loss(logits, labels))
    for label in (-100, -1, 4):
        wrong = labels.clone()
        wrong[3] = label
        with pytest.raises(ValueError, match=rf"labels must lie in \[0, 3\], got {label}; drop"):
            loss(logits, wrong)
        # On a GPU values are not read: torch raises for them.
        if label != -1:
            with pytest.raises((RuntimeError, IndexError)):
                loss(logits, wrong.as_subclass(OnGpu))
    with pytest.raises(ValueError, match="labels must be"):
        loss(logits, labels[:2])
    with pytest.raises(TypeError, match=r"labels must be class indices, got dtype torch\.float"):
        loss(logits, labels + 0.5)
    with pytest.raises(ValueError, match="logits must be"):
        loss(logits[..., None, None].expand(-1, -1, 2, 2), labels)
    with pytest.raises(ValueError, match=r"needs? at least"):
        loss(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))
    logits, labels = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    if is_statistic(name):
        with pytest.raises(ValueError, match="at least 1 example"):
            loss(logits, labels)
    else:
        assert loss(logits, labels).shape == (0,)


NEUTRAL = {
    "label_smoothing": {"alpha": 0},
    "label_smoothing_code": {"alpha": 0, "form": "public_code"},
    "focal": {"gamma": 0},
    "focal_tensor": {"gamma": torch.zeros(12)},
    "focal_detached": {"gamma": 0, "detach_weight": True},
    "flsd": {"thresholds": (0.5,)},
    "dual_focal": {"gamma": 0},
    "inverse_focal": {"gamma": 0},
    "entropy": {"alpha": 0},
    "logit_norm": {"alpha": 0},
    "margin_smoothing": {"alpha": 0},
    "margin_smoothing_wide": {"margin": math.inf},
    "cals": {"margin": 1e6, "multipliers": 0},
    "cals_p3": {"margin": 1e-3, "multipliers": 0, "penalty": "p3"},
    "acls": {"alpha": 0},
    "acls_wide": {"margin": math.inf},
    "cpc": {"discrimination": 0, "exclusion": 0},
    "nacl": {"alpha": 0},
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_setting_is_cross_entropy(name):
    loss = next(LOSSES[known] for known in sorted(LOSSES, reverse=True) if name.startswith(known))
    logits, labels = batch()
    value, gradient = value_and_gradient(partial(loss, **NEUTRAL[name]), logits, labels)
    expected, exact = value_and_gradient(LOSSES["cross_entropy"], logits, labels)
    assert_close(value, expected, rtol=1e-14, atol=1e-14)
    assert_close(gradient, exact, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_documented_and_public(name):
    doc = inspect.getdoc(LOSSES[name])
    assert LOSSES[name].__name__ == name
    assert doc.splitlines()[0].endswith(".")
    assert not doc.splitlines()[1]
    assert "$$" in doc
    assert "References:" in doc or name == "cross_entropy"
    settings = list(inspect.signature(LOSSES[name]).parameters.values())[2:]
    # Where an example is in a mask is no setting.
    settings = [each for each in settings if each.name not in ("images", "shares")]
    assert all(setting.kind is setting.KEYWORD_ONLY for setting in settings)
    assert all(setting.default is not setting.empty for setting in settings)
    assert name in losses.__all__
    assert all(hasattr(losses, name) for name in losses.__all__)
