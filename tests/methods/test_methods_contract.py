"""Properties of every method, such as a neutral setting that is cross entropy."""

import pytest
import torch
from torch import nn

from calibrant import losses, methods
from calibrant.data import Batch
from calibrant.methods import METHODS
from calibrant.methods.plain import TERMS

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
    "calmo": {"robust": 0.0, "smooth": 0.0},
    "cals_alm": {"margin": 1e6},
    "cals_hr": {"margin": 1e6},
    "logit_adjustment": {"tau": 0.0},
    "gamma_net": {"tau": 1e-15},
    "meta_smoothing": {},
    **{name: {"weight": 0.0} for name in TERMS},
}

# Perturbs the inputs, so pixels and mixup are in tests of its own.
PERTURBS = {"calmo"}


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


@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_setting_has_the_gradient_of_cross_entropy(name):
    method = made(name, **NEUTRAL[name])
    expected = gradient_of(methods.build("cross_entropy", classes=4), batch_of())
    torch.testing.assert_close(gradient_of(method, batch_of()), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - PERTURBS))
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
    torch.testing.assert_close(dense, method.loss(same, flat))


@pytest.mark.parametrize("name", sorted(METHODS.keys() - TERMS.keys() - PERTURBS))
def test_mixup_weighs_the_losses_of_both_labels(name):
    method = made(name)
    plain, other = batch_of(), batch_of(seed=3).labels
    share = torch.linspace(0, 1, 12, dtype=torch.float64)
    mixup = Batch(plain.inputs, plain.labels, plain.index, other, share)
    swapped = Batch(plain.inputs, other, plain.index)
    model = linear()
    by_hand = share * method.loss(model, plain) + (1 - share) * method.loss(model, swapped)
    torch.testing.assert_close(method.loss(model, mixup), by_hand)


@pytest.mark.parametrize("name", [n for n in METHODS if "adjust" in METHODS[n].settings])
def test_every_method_can_be_adjusted_for_rare_classes(name):
    equal, rare = made(name, adjust=1.0), made(name, adjust=1.0)
    equal.counts = torch.full((4,), 7)
    plain = gradient_of(made(name), batch_of())
    torch.testing.assert_close(gradient_of(equal, batch_of()), plain, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(gradient_of(rare, batch_of()), plain, rtol=1e-3)


@pytest.mark.parametrize("name", TERMS)
def test_a_batch_statistic_is_added_with_its_weight_to_its_base(name):
    method = methods.build(name, classes=4, base="focal", weight=1.7)
    model, batch = linear(), batch_of()
    logits = model(batch.inputs)
    term = losses.LOSSES[name](logits, batch.labels)
    expected = losses.focal(logits, batch.labels) + 1.7 * term
    torch.testing.assert_close(method.loss(model, batch), expected)


def test_with_mixup_a_batch_statistic_uses_the_label_of_the_larger_weight():
    method = methods.build("mmce", classes=4)
    plain, other = batch_of(), batch_of(seed=3).labels
    share = torch.full((12,), 0.3, dtype=torch.float64)
    found = method.loss(linear(), Batch(plain.inputs, plain.labels, plain.index, other, share))
    logits = linear()(plain.inputs)
    each = 0.3 * losses.cross_entropy(logits, plain.labels)
    each = each + 0.7 * losses.cross_entropy(logits, other)
    torch.testing.assert_close(found, each + 4 * losses.mmce(logits, other))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("focl", {}, "no method 'focl'; did you mean focal?"),
        ("focal", {"gama": 1}, "method focal has no setting 'gama'; did you mean gamma?"),
        ("cross_entropy", {"gamma": 1}, "has no setting 'gamma'; expected one of adjust"),
        ("balanced_softmax", {"tau": 1}, "has no setting 'tau'; it takes none"),
        ("focal", {"gamma": -1.0}, "gamma must be at least 0"),
        ("mmce", {"base": "dca"}, "base must be one of"),
        ("mmce", {"weight": -1.0}, "weight must be at least 0, got -1"),
        ("mmce", {"weight": float("inf")}, "weight must be finite, got inf"),
        ("cals_alm", {"margin": 0.0}, "margin must be positive"),
        ("cals_alm", {"penalty": "p4"}, "penalty must be one of"),
        ("cals_alm", {"rho_most": 0.5}, "rho_most must be at least 1"),
    ],
)
def test_an_unknown_name_or_invalid_value_raises(name, settings, message, as_a_user_runs_it):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        methods.build(name, classes=4, **settings)


# All other settings are numbers or names.
INTEGERS = {"steps", "every", "step", "multiplier_step", "rho_step", "bins"}
BOOLEANS = {"normalize", "detach_clean", "detach_weight"}
# Tested in test_gamma_net.py.
ELSEWHERE = {"gamma_net", "meta_smoothing", "adafocal"}


def invalid_values(name: str):
    for setting in METHODS[name].settings:
        for value in ("x", "no", None, float("nan"), [None]):
            # A weight of None is the default weight.
            if (setting, value) != ("weight", None):
                yield setting, value
        if setting in INTEGERS | BOOLEANS:
            yield setting, 1.5


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("name", sorted(METHODS.keys() - ELSEWHERE))
def test_invalid_values_raise_in_one_line_that_names_the_setting(name):
    for setting, value in invalid_values(name):
        with pytest.raises((TypeError, ValueError), match=rf"^{setting} ") as caught:
            methods.build(name, classes=4, **{setting: value})
        assert "\n" not in str(caught.value)


def test_the_state_of_another_method_raises():
    state = methods.build("cals_alm", classes=4).state_dict()
    with pytest.raises(ValueError, match=r"not a state of Plain: expected the keys \[\], got \['"):
        methods.build("focal", classes=4).load_state_dict(state)
    with pytest.raises(ValueError, match="not a state of CalsAlm"):
        methods.build("cals_alm", classes=4).load_state_dict({})
    with pytest.raises(ValueError, match=r"multipliers must have shape \(3,\), got \(4,\)"):
        methods.build("cals_alm", classes=3).load_state_dict(state)


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
