"""Every method of the dict makes a loss, and its neutral setting is cross entropy."""

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

# Looks at inputs nearby, so what it says of pixels and of mixed images is in tests of its own.
NEARBY = {"calmo"}


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


@pytest.mark.filterwarnings("ignore:how images became inputs is not known")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_a_finite_loss_whose_gradient_moves_the_weights(name):
    model = linear()
    loss = made(name).loss(model, batch_of())
    assert loss.shape in ((), (12,))
    loss.mean().backward()
    assert loss.isfinite().all()
    assert model.weight.grad.abs().sum() > 0
    # Masks without a pixel that counts have no loss, and a gradient of zero.
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


@pytest.mark.parametrize("name", sorted(METHODS.keys() - NEARBY))
def test_pixels_are_examples_and_those_that_do_not_count_change_nothing(name):
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 1, dtype=torch.float64)
    inputs = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    labels = torch.randint(4, (2, 5, 4))
    labels[0, :2] = 9
    counts = labels.flatten() != 9
    method = made(name)
    method.ignore_index = 9
    dense = method.loss(convolution, Batch(inputs, labels, torch.arange(2)))
    same = nn.Linear(3, 4, dtype=torch.float64)
    same.load_state_dict({key: each.squeeze() for key, each in convolution.state_dict().items()})
    rows = inputs.movedim(1, -1).reshape(-1, 3)[counts]
    flat = Batch(rows, labels.flatten()[counts], torch.arange(len(rows)))
    torch.testing.assert_close(dense, method.loss(same, flat))


@pytest.mark.parametrize("name", sorted(METHODS.keys() - TERMS.keys() - NEARBY))
def test_mixed_images_have_the_mixed_loss_of_both_labels(name):
    method = made(name)
    plain, other = batch_of(), batch_of(seed=3).labels
    share = torch.linspace(0, 1, 12, dtype=torch.float64)
    mixed = Batch(plain.inputs, plain.labels, plain.index, other, share)
    swapped = Batch(plain.inputs, other, plain.index)
    model = linear()
    by_hand = share * method.loss(model, plain) + (1 - share) * method.loss(model, swapped)
    torch.testing.assert_close(method.loss(model, mixed), by_hand)


@pytest.mark.parametrize("name", [n for n in METHODS if "adjust" in METHODS[n].settings])
def test_every_method_can_be_adjusted_for_rare_classes(name):
    equal, rare = made(name, adjust=1.0), made(name, adjust=1.0)
    equal.counts = torch.full((4,), 7)
    plain = gradient_of(made(name), batch_of())
    torch.testing.assert_close(gradient_of(equal, batch_of()), plain, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(gradient_of(rare, batch_of()), plain, rtol=1e-3)


@pytest.mark.parametrize("name", TERMS)
def test_a_term_is_added_with_its_weight_to_the_base_it_is_given(name):
    method = methods.build(name, classes=4, base="focal", weight=1.7)
    model, batch = linear(), batch_of()
    logits = model(batch.inputs)
    term = losses.LOSSES[name](logits, batch.labels)
    expected = losses.focal(logits, batch.labels) + 1.7 * term
    torch.testing.assert_close(method.loss(model, batch), expected)


def test_a_term_of_mixed_images_takes_the_label_of_the_larger_part():
    method = methods.build("mmce", classes=4)
    plain, other = batch_of(), batch_of(seed=3).labels
    share = torch.full((12,), 0.3, dtype=torch.float64)
    mixed = method.loss(linear(), Batch(plain.inputs, plain.labels, plain.index, other, share))
    logits = linear()(plain.inputs)
    each = 0.3 * losses.cross_entropy(logits, plain.labels)
    each = each + 0.7 * losses.cross_entropy(logits, other)
    torch.testing.assert_close(mixed, each + 4 * losses.mmce(logits, other))


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
def test_a_wrong_name_or_value_is_refused_before_training(
    name, settings, message, as_a_user_runs_it
):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        methods.build(name, classes=4, **settings)


# Whole numbers, flags and lists; all other settings are numbers or names.
WHOLE = {"steps", "every", "step", "multiplier_step", "rho_step", "bins"}
FLAGS = {"normalize", "detach_clean", "detach_weight"}
# Checked by tests of their own.
ELSEWHERE = {"gamma_net", "meta_smoothing", "adafocal"}


def nonsense(name: str):
    for setting in METHODS[name].settings:
        for value in ("x", "no", None, float("nan"), [None]):
            # No weight is the usual weight.
            if (setting, value) != ("weight", None):
                yield setting, value
        if setting in WHOLE | FLAGS:
            yield setting, 1.5


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("name", sorted(METHODS.keys() - ELSEWHERE))
def test_nonsense_is_refused_when_a_method_is_made_in_one_line_that_names_it(name):
    for setting, value in nonsense(name):
        with pytest.raises((TypeError, ValueError), match=rf"^{setting} ") as caught:
            methods.build(name, classes=4, **{setting: value})
        assert "\n" not in str(caught.value)


def test_a_method_that_learns_nothing_refuses_the_state_of_another():
    state = methods.build("cals_alm", classes=4).state_dict()
    with pytest.raises(ValueError, match="learns nothing"):
        methods.build("focal", classes=4).load_state_dict(state)
    with pytest.raises(ValueError, match="not a state of CalsAlm"):
        methods.build("cals_alm", classes=4).load_state_dict({})
    with pytest.raises(ValueError, match="must be for 3 classes"):
        methods.build("cals_alm", classes=3).load_state_dict(state)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("name", METHODS)
def test_classes_are_at_least_two_and_labels_that_are_none_of_them_are_refused_in_words(name):
    for classes in (None, "3", True, 2.5, 1, -1):
        with pytest.raises((TypeError, ValueError), match=r"^classes must be a"):
            methods.build(name, classes=classes)
    batch = batch_of()
    for label, said in (
        (-100, "^label -100 is no class: "),
        (4, "^label 4 is no class: "),
        (0.5, "^labels must be class indices"),
    ):
        labels = batch.labels.to(torch.float64 if label == 0.5 else torch.int64, copy=True)
        labels[3] = label
        with pytest.raises((TypeError, ValueError), match=said):
            made(name).loss(linear(), Batch(batch.inputs, labels, batch.index))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    "name", ["adafocal", "calmo", "cals_alm", "cals_hr", "gamma_net", "meta_smoothing"]
)
def test_a_network_of_other_classes_is_refused_in_words(name):
    with pytest.raises(ValueError, match=r"5 classes"):
        made(name).loss(linear(5), batch_of())


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("counts", [torch.ones(1), torch.ones(3), torch.ones(4, 1)], ids=str)
def test_counts_of_other_classes_are_refused(counts):
    method = made("focal", adjust=1.0)
    method.counts = counts
    with pytest.raises(ValueError, match="counts must be one number for each of 4 classes"):
        method.loss(linear(), batch_of())
