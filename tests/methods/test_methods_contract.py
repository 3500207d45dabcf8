"""Properties of every method, such as a neutral setting that is cross entropy."""

from copy import deepcopy
from dataclasses import replace
from inspect import signature

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from calibrant import Predictions, losses, methods
from calibrant.data import Batch
from calibrant.losses import LOSSES
from calibrant.methods import METHODS
from calibrant.methods.plain import BY_IMAGE, TERMS

COUNTS = torch.tensor([50, 20, 5, 1])

# Settings with which a method is cross entropy.
NEUTRAL = {
    "cross_entropy": {},
    "label_smoothing": {"alpha": 0.0},
    "focal": {"gamma": 0.0},
    "dual_focal": {"gamma": 0.0},
    "inverse_focal": {"gamma": 0.0},
    "entropy": {"alpha": 0.0},
    "logit_norm": {"alpha": 0.0},
    "margin_smoothing": {"alpha": 0.0},
    "cals": {"multipliers": 0.0, "penalty": "p3"},
    "nacl": {"alpha": 0.0},
    "calmo": {"robust": 0.0, "smooth": 0.0},
    "cals_alm": {"margin": 1e6},
    "cals_hr": {"margin": 1e6},
    "logit_adjustment": {"tau": 0.0},
    "gamma_net": {"tau": 1e-15},
    "meta_smoothing": {},
    **{name: {"weight": 0.0} for name in TERMS},
}

# Methods with a state, and settings with which it changes in two steps.
STATEFUL = {
    "adafocal": {"bins": 3},
    "calmo": {"every": 3, "smooth_part": 1.0},
    "cals_alm": {"margin": 2.0, "rho_step": 2},
    "cals_hr": {"margin": 1.0},
    "gamma_net": {"attention": True, "bandwidth": 0.1, "meta_lr": 0.1},
    "margin_smoothing": {"schedule": "add", "change": 0.1},
    "meta_smoothing": {"form": "matrix", "meta_lr": 0.1},
}

# Perturbs the inputs, so pixels and mixup are in tests of its own.
PERTURBS = {"calmo"}
# Images and neighbours matter, so pixels are in tests of their own.
SPATIAL = {"nacl", *BY_IMAGE}


def batch_of(n: int = 12, k: int = 4, seed: int = 0, **extras) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(k, (n,), generator=generator)
    return Batch(inputs, labels, torch.arange(n), **extras)


def made(name: str, **settings) -> methods.Method:
    method = methods.build(name, classes=4, **settings)
    method.counts = COUNTS
    return method


def linear(k: int = 4) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(5, k, dtype=torch.float64)


def gradient_of(method, batch: Batch) -> torch.Tensor:
    model = linear()
    method.loss(model, batch).mean().backward()
    return model.weight.grad


@pytest.mark.filterwarnings("ignore:the normalisation of the images is unknown")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_finite_loss_with_a_gradient(name):
    model = linear()
    loss = made(name).loss(model, batch_of())
    assert loss.shape in ((), (12,))
    loss.mean().backward()
    assert loss.isfinite().all()
    assert model.weight.grad.abs().sum() > 0
    # Masks without a valid pixel have no loss, and a gradient of zero.
    convolution, method = nn.Conv2d(3, 4, 1, dtype=torch.float64), made(name)
    method.ignore_index = 9
    images = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    masks = Batch(images, torch.full((2, 5, 5), 9), torch.arange(2))
    if method.needs_meta:
        method.before_step(convolution, masks, masks, 0.1)
    loss = method.loss(convolution, masks)
    assert loss.shape == (0,)
    loss.sum().backward()
    assert not convolution.weight.grad.any()


class HalfPrecision(nn.Module):
    """A network that computes in bfloat16 by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.head = linear().float()

    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(inputs)


@pytest.mark.filterwarnings("ignore:the normalisation of the images is unknown")
@pytest.mark.parametrize("name", METHODS)
def test_in_mixed_precision_only_the_network_computes_in_half_precision(name):
    whole = batch_of(24)
    batch = replace(whole, inputs=whole.inputs.float())
    found, gradients = [], []
    for everywhere in (False, True):
        model, method = HalfPrecision(), made(name)
        with torch.autocast("cpu", torch.bfloat16, enabled=everywhere):
            if method.needs_meta:
                method.before_step(model, batch.take(slice(12)), batch.take(slice(12, 24)), 0.1)
            loss = method.loss(model, batch.take(slice(12)))
        assert loss.dtype == torch.float32
        loss.mean().backward()
        found.append(loss.detach())
        gradients.append(model.head.weight.grad)
    assert_close(*found, rtol=1e-5, atol=1e-6)
    assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_setting_has_the_gradient_of_cross_entropy(name):
    method = made(name, **NEUTRAL[name])
    expected = gradient_of(methods.build("cross_entropy", classes=4), batch_of())
    assert_close(gradient_of(method, batch_of()), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - PERTURBS - SPATIAL))
def test_pixels_are_examples_and_ignored_ones_change_nothing(name):
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 1, dtype=torch.float64)
    inputs = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    labels = torch.randint(4, (2, 5, 4))
    labels[0, :2] = 9
    valid = labels.flatten() != 9
    method = made(name)
    method.ignore_index = 9
    dense = method.loss(convolution, Batch(inputs, labels, torch.arange(2)))
    same = nn.Linear(3, 4, dtype=torch.float64)
    same.load_state_dict({key: each.squeeze() for key, each in convolution.state_dict().items()})
    pixels = inputs.movedim(1, -1).reshape(-1, 3)[valid]
    flat = Batch(pixels, labels.flatten()[valid], torch.arange(len(pixels)))
    assert_close(dense, method.loss(same, flat))


@pytest.mark.parametrize("name", sorted(METHODS.keys() - TERMS.keys() - PERTURBS))
def test_mixup_weighs_the_losses_of_both_labels(name):
    method = made(name)
    plain, other = batch_of(), batch_of(seed=3).labels
    share = torch.linspace(0, 1, 12, dtype=torch.float64)
    mixup = Batch(plain.inputs, plain.labels, plain.index, other, share)
    swapped = Batch(plain.inputs, other, plain.index)
    model = linear()
    by_hand = share * method.loss(model, plain) + (1 - share) * method.loss(model, swapped)
    assert_close(method.loss(model, mixup), by_hand)


@pytest.mark.parametrize("name", [n for n in METHODS if "adjust" in METHODS[n].settings])
def test_every_method_can_be_adjusted_for_rare_classes(name):
    equal, rare = made(name, adjust=1.0), made(name, adjust=1.0)
    equal.counts = torch.full((4,), 7)
    plain = gradient_of(made(name), batch_of())
    assert_close(gradient_of(equal, batch_of()), plain, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(gradient_of(rare, batch_of()), plain, rtol=1e-3)


@pytest.mark.parametrize("name", TERMS)
def test_a_batch_statistic_is_added_with_its_weight_to_its_base(name):
    method = methods.build(name, classes=4, base="focal", weight=1.7)
    model, batch = linear(), batch_of()
    logits = model(batch.inputs)
    term = losses.LOSSES[name](logits, batch.labels)
    expected = losses.focal(logits, batch.labels) + 1.7 * term
    assert_close(method.loss(model, batch), expected)


def test_with_mixup_a_batch_statistic_uses_the_label_of_the_larger_weight():
    method = methods.build("mmce", classes=4)
    plain, other = batch_of(), batch_of(seed=3).labels
    share = torch.full((12,), 0.3, dtype=torch.float64)
    found = method.loss(linear(), Batch(plain.inputs, plain.labels, plain.index, other, share))
    logits = linear()(plain.inputs)
    each = 0.3 * losses.cross_entropy(logits, plain.labels)
    each = each + 0.7 * losses.cross_entropy(logits, other)
    assert_close(found, each + 4 * losses.mmce(logits, other))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("focl", {}, "no method 'focl'; did you mean focal"),
        ("focal", {"gama": 1}, "method focal has no setting 'gama'; did you mean gamma"),
        ("cross_entropy", {"gamma": 1}, "has no setting 'gamma'; expected one of adjust"),
        ("balanced_softmax", {"tau": 1}, "has no setting 'tau'; it takes none"),
        ("mmce", {"base": "dca"}, "base must be one of"),
        ("mmce", {"weight": float("inf")}, "weight must be finite, got inf"),
        ("cals_alm", {"margin": 0.0}, "margin must be positive"),
        ("cals_alm", {"rho_most": 0.5}, "rho_most must be at least 1"),
        ("adafocal", {"least": 0.5}, "least must be finite and at most"),
        ("margin_smoothing", {"schedule": "multiply"}, "needs a change above 0"),
        ("meta_smoothing", {"form": "row"}, r"form must be one of \['scalar', 'class', 'matrix'\]"),
        ("calmo", {"steps": 0}, "steps must be at least 1"),
        ("calmo", {"part": 0.0}, r"part must lie in \(0, 1\], got 0"),
        ("calmo", {"difference": 0.0}, "difference must be positive"),
        ("gamma_net", {"tau": 0.0}, "tau must be positive"),
        ("gamma_net", {"every": 0}, "every must be at least 1"),
        ("gamma_net", {"bandwidth": 0.0}, "bandwidth must be positive"),
    ],
)
def test_an_unknown_name_or_invalid_value_raises(name, settings, message, as_a_user_runs_it):
    with pytest.raises(ValueError, match=message):
        methods.build(name, classes=4, **settings)


# Invalid for every setting, but for a few exceptions.
INVALID = ("x", "no", None, float("nan"), [None], -1)
VALID = [("weight", None), ("layer", "x"), ("layer", "no"), ("meta_batch", None), ("least", -1)]


def invalid_values(name: str):
    make = METHODS[name].make
    known = {**signature(LOSSES.get(name, make)).parameters, **signature(make).parameters}
    for setting in METHODS[name].settings:
        default = known[setting].default if setting in known else 0.0
        more = [1.5] * isinstance(default, int) + [True] * (not isinstance(default, bool))
        for value in (*INVALID, *more):
            if (setting, value) not in VALID:
                yield setting, value


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("name", METHODS)
def test_invalid_values_raise_in_one_line_that_names_the_setting(name):
    for setting, value in invalid_values(name):
        with pytest.raises((TypeError, ValueError), match=rf"^{setting} ") as caught:
            methods.build(name, classes=4, **{setting: value})
        assert "\n" not in str(caught.value)


def epoch_of(method: methods.Method) -> tuple:
    """Two steps and validation: the losses, and what the method records."""
    model, found = linear(), []
    for seed in (0, 1):
        batch = batch_of(seed=seed)
        if method.needs_meta:
            method.before_step(model, batch, batch_of(n=40, seed=2), 0.5)
        found.append(method.loss(model, batch).detach())
    val = batch_of(n=30, seed=3)
    return found, method.after_epoch(Predictions(5 * model(val.inputs).detach(), val.labels))


def values_of(state: dict) -> dict:
    return {key: each for key, each in state.items() if key != "settings"}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_is_a_copy_from_which_another_method_resumes(name):
    method, other, new = (made(name, **STATEFUL[name]) for _ in range(3))
    other.load_state_dict(new.state_dict())
    epoch_of(method)
    state = method.state_dict()
    before = deepcopy(values_of(state))
    other.load_state_dict(state)
    other.to(torch.device("cpu"))
    for _ in range(2):
        assert_close(epoch_of(other), epoch_of(method), rtol=0, atol=0)
        found, expected = (values_of(each.state_dict()) for each in (other, method))
        assert_close(found, expected, rtol=0, atol=0)
    assert_close(values_of(state), before, rtol=0, atol=0)
    with pytest.raises(AssertionError):
        assert_close(expected, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", STATEFUL)
def test_states_of_another_kind_or_shape_and_validation_of_other_classes_raise(name):
    method = made(name, **STATEFUL[name])
    epoch_of(method)
    state = method.state_dict()
    for wrong in ({}, {**state, "more": 1}):
        with pytest.raises(ValueError, match=f"not a state of {type(method).__name__}: expected"):
            method.load_state_dict(wrong)
    for key in (key for key, each in state.items() if isinstance(each, torch.Tensor)):
        with pytest.raises(ValueError, match=rf"{key} must have shape .*, got \(9,\)"):
            method.load_state_dict({**state, key: torch.zeros(9)})
    if name not in ("calmo", "margin_smoothing"):
        with pytest.raises(ValueError, match="must have the 4 classes of the method, got 2"):
            method.after_epoch(Predictions(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("name", METHODS)
def test_fewer_than_two_classes_and_invalid_labels_raise(name):
    for classes in (None, "3", True, 2.5, 1, -1):
        with pytest.raises((TypeError, ValueError), match=r"^classes must be a[nt] "):
            methods.build(name, classes=classes)
    batch = batch_of()
    for label in (-100, 4, 0.5):
        labels = batch.labels.to(torch.float64 if label == 0.5 else torch.int64, copy=True)
        labels[3] = label
        message = "be class indices" if label == 0.5 else rf"lie in \[0, 3\], got {label};"
        with pytest.raises((TypeError, ValueError), match=f"^labels must {message}"):
            made(name).loss(linear(), Batch(batch.inputs, labels, batch.index))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    "name", ["adafocal", "calmo", "cals_alm", "cals_hr", "gamma_net", "meta_smoothing"]
)
def test_networks_and_counts_of_other_classes_raise(name):
    with pytest.raises(ValueError, match=r"of 5 classes|logits must have the 4 .*, got 5"):
        made(name).loss(linear(5), batch_of())
    method = made(name, adjust=1.0)
    for counts in (torch.ones(1), torch.ones(3), torch.ones(4, 1)):
        method.counts = counts
        with pytest.raises(ValueError, match="counts must have one number for each of 4 classes"):
            method.loss(linear(), batch_of())
