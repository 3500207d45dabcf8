"""CalMO: each term for linear networks, its gradient, and side effects."""

import copy
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional

from calibrant import methods, models
from calibrant.curvature.attacks import dual_norm
from calibrant.data import Batch, Scale
from calibrant.losses import cross_entropy
from calibrant.losses.margin import margin
from calibrant.methods.neighbourhood import count_first_images, image_weights
from calibrant.predictions import Predictions

SCALE = Scale((0.5, 0.4, 0.3), (0.25, 0.2, 0.1))
BOTH = ("double_backward", "finite_difference")


def built(k: int = 4, **settings) -> methods.Calmo:
    settings.setdefault("smooth_part", settings.get("part", 1.0))
    return methods.build("calmo", classes=k, **settings)


def vectors(n: int = 12, d: int = 5, k: int = 4, **extras) -> Batch:
    inputs = torch.randn(n, d, dtype=torch.float64)
    return Batch(inputs, torch.randint(k, (n,)), torch.arange(n), **extras)


def images(n: int = 6) -> Batch:
    stored = torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8)
    return Batch(SCALE(stored).double(), torch.randint(4, (n,)), torch.arange(n))


def tanh(d: int = 5, k: int = 4, *, norm: bool = False) -> nn.Sequential:
    layers = [nn.Linear(d, 7), *([nn.BatchNorm1d(7)] if norm else []), nn.Tanh(), nn.Linear(7, k)]
    return nn.Sequential(*layers).double()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.grad.flatten() for each in model.parameters()])


def gradient(method, model, batch) -> torch.Tensor:
    model.zero_grad()
    method.loss(model, batch).mean().backward()
    return flat(model)


def added(method, model, batch) -> torch.Tensor:
    """Terms that are added to the cross entropy of each example."""
    plain = methods.build("cross_entropy", classes=4)
    plain.ignore_index = method.ignore_index
    return method.loss(model, batch) - plain.loss(model, batch)


def margin_gradient(model: nn.Linear, batch: Batch) -> torch.Tensor:
    """Of a linear network: the weights of the label minus those of the runner-up."""
    best = model(batch.inputs).scatter(1, batch.labels[:, None], -torch.inf).argmax(1)
    return model.weight[batch.labels] - model.weight[best]


def test_without_radius_or_terms_the_gradient_is_that_of_cross_entropy():
    model, batch = tanh(norm=True), vectors()
    method = built(epsilon=0.0, smooth=0.0, robust=7.0)
    plain = cross_entropy(model(batch.inputs), batch.labels)
    torch.testing.assert_close(method.loss(model, batch), plain, rtol=0, atol=1e-15)
    expected = gradient(methods.build("cross_entropy", classes=4), model, batch)
    torch.testing.assert_close(gradient(method, model, batch), expected)
    for settings in ({"robust": 0.0, "smooth": 0.0}, {"every": 2}):
        method = built(**settings)
        method.step = 1
        torch.testing.assert_close(gradient(method, model, batch), expected, rtol=0, atol=1e-14)


def test_the_robust_term_is_the_divergence_that_torch_computes():
    model, batch = tanh(), vectors()
    inputs = []
    handle = model.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach()))
    method = built(smooth=0.0, robust=1.0, epsilon=0.5, step_size=0.2)
    each = method.loss(model, batch)
    handle.remove()
    # Three steps of the attack, the clean pass, the adversarial pass.
    assert len(inputs) == 5
    assert (inputs[-1] - batch.inputs).abs().max() == pytest.approx(0.5)
    log_p, log_q = (model(x).log_softmax(1) for x in (batch.inputs, inputs[-1]))
    expected = functional.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    term = each.mean() - cross_entropy(model(batch.inputs), batch.labels).mean()
    torch.testing.assert_close(term, expected)
    assert expected > 0.001


@pytest.mark.parametrize("batch_norm", ["eval", "train"])
def test_the_attack_has_the_requested_mode_and_all_other_passes_training_mode(batch_norm):
    model, modes = tanh(norm=True), []
    model.register_forward_pre_hook(lambda module, _: modes.append(module[1].training))
    built(batch_norm=batch_norm, smooth_by="finite_difference").loss(model, vectors())
    assert modes == [batch_norm == "train"] * 3 + [True] * 3


@pytest.mark.parametrize("smooth_by", BOTH)
def test_the_smoothness_term_of_a_linear_network(smooth_by):
    model, batch = nn.Linear(5, 4, dtype=torch.float64), vectors()
    method = built(robust=0.0, smooth=0.3, smooth_by=smooth_by)
    squares = margin_gradient(model, batch).pow(2).sum(1)
    expected = cross_entropy(model(batch.inputs), batch.labels) + 0.3 * squares
    torch.testing.assert_close(method.loss(model, batch), expected)
    found = gradient(method, model, batch)
    model.zero_grad()
    expected.mean().backward()
    # Differences of a linear network are exact while the runner-up stays the same.
    torch.testing.assert_close(found, flat(model), rtol=0, atol=1e-12)


@pytest.mark.parametrize("space", ["pixel", "normalized"])
def test_gradients_are_in_the_units_of_the_space(space):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 4)).double()
    batch = images()
    method = built(robust=0.0, smooth=1.0, space=space)
    method.scale = SCALE
    flat = Batch(batch.inputs.flatten(1), batch.labels, batch.index)
    gradients = margin_gradient(model[1], flat).view(-1, 3, 4, 4)
    if space == "pixel":
        gradients = gradients / torch.tensor(SCALE.std, dtype=torch.float64)[:, None, None]
    plain = cross_entropy(model(batch.inputs), batch.labels)
    expected = plain + gradients.pow(2).sum((1, 2, 3))
    torch.testing.assert_close(method.loss(model, batch), expected)


@pytest.mark.parametrize("smooth_by", BOTH)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_tail_term_of_a_linear_network(norm, smooth_by):
    model, batch = nn.Linear(5, 4, dtype=torch.float64), vectors()
    settings = {"tail": 0.7, "tail_temperature": 0.5, "attack_norm": norm, "epsilon": 0.1}
    method = built(robust=0.0, smooth=0.0, smooth_by=smooth_by, difference=1e-3, **settings)
    logits = model(batch.inputs)
    robust = margin(logits, batch.labels) - 0.1 * dual_norm(margin_gradient(model, batch), norm)
    tail = 0.5 * (-robust / 0.5).exp().mean().log()
    expected = cross_entropy(logits, batch.labels) + 0.7 * tail
    torch.testing.assert_close(method.loss(model, batch), expected)
    found = gradient(method, model, batch)
    model.zero_grad()
    expected.mean().backward()
    torch.testing.assert_close(found, flat(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch_norm"])
def test_the_gradient_of_the_whole_loss_matches_finite_differences(norm, monkeypatch):
    model, batch = tanh(norm=norm), vectors()
    settings = {"smooth": 0.5, "robust": 2.0, "tail": 0.3, "epsilon": 0.3, "step_size": 0.1}
    method = built(**settings, smooth_by="double_backward")
    # The attack jumps where a gradient changes sign: use a fixed one.
    fixed = 0.3 * torch.randn_like(batch.inputs).sign()
    monkeypatch.setattr("calibrant.methods.calmo.pgd", lambda *_, **__: fixed)
    found = gradient(method, model, batch)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = torch.randn_like(weights)
    values = []
    for step in (1e-5, -1e-5):
        nn.utils.vector_to_parameters(weights + step * direction, model.parameters())
        values.append(method.loss(model, batch).mean().item())
    assert (found @ direction).item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch_norm"])
@pytest.mark.parametrize("terms", [{"smooth": 0.5}, {"smooth": 0.2, "tail": 0.5, "part": 0.5}])
def test_finite_differences_converge_to_double_backward(norm, terms):
    model, batch = tanh(norm=norm), vectors(n=30)
    start = copy.deepcopy(model.state_dict())
    exact = built(**terms, smooth_by="double_backward")
    expected, value = gradient(exact, model, batch), exact.loss(model, batch)
    errors = []
    for difference in (1e-2, 1e-3, 1e-4):
        model.load_state_dict(start)
        method = built(**terms, smooth_by="finite_difference", difference=difference)
        errors.append((gradient(method, model, batch) - expected).norm() / expected.norm())
        torch.testing.assert_close(method.loss(model, batch), value)
    # The error is of first order in the length.
    assert errors[0] < 1e-2
    assert errors[1] < 0.2 * errors[0]
    assert errors[2] < 0.2 * errors[1]


def test_finite_differences_have_the_requested_length_and_are_exact_for_linear_networks():
    linear, model, batch, inputs = nn.Linear(5, 4).double(), tanh(), vectors(n=30), []
    for terms in ({"smooth": 0.5}, {"smooth": 0.2, "tail": 0.5}):
        # With a long difference the runner-up changes.
        terms = {**terms, "robust": 0.0, "difference": 50.0}
        exact, other = (gradient(built(**terms, smooth_by=by), linear, batch) for by in BOTH)
        torch.testing.assert_close(other, exact, rtol=0, atol=1e-10)
    model.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach()))
    built(robust=0.0, smooth_by="finite_difference", difference=0.3).loss(model, batch)
    clean, perturbed = inputs
    length = (perturbed - clean).pow(2).sum(1).mean().sqrt()
    assert length.item() == pytest.approx(0.3)


@pytest.mark.parametrize("smooth_by", BOTH)
@pytest.mark.parametrize("batch_norm", ["eval", "train"])
def test_only_the_clean_pass_has_side_effects(smooth_by, batch_norm):
    layers = [nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 4)]
    model = nn.Sequential(*layers).double()
    model[0].bias.requires_grad_(False)
    other, batch = copy.deepcopy(model), vectors()
    method = built(smooth_by=smooth_by, batch_norm=batch_norm, tail=0.1)
    torch.manual_seed(1)
    loss = method.loss(model, batch)
    drawn = torch.rand(1)
    assert all(each.grad is None for each in model.parameters())
    loss.mean().backward()
    torch.manual_seed(1)
    methods.build("cross_entropy", classes=4).loss(other, batch)
    assert torch.equal(drawn, torch.rand(1))
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-14, atol=1e-14)
    flags = [each.requires_grad for each in model.parameters()]
    assert flags == [each.requires_grad for each in other.parameters()]
    assert all(part.training for part in model.modules())


def test_all_passes_of_a_step_have_the_same_dropout():
    model = nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, 4)).double()
    batch = vectors()
    torch.manual_seed(2)
    small = built(epsilon=0.0, smooth=0.1, smooth_by="finite_difference", difference=1e-4)
    found = gradient(small, model, batch)
    torch.manual_seed(2)
    exact = gradient(built(epsilon=0.0, smooth=0.1, smooth_by="double_backward"), model, batch)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-8)


def masks() -> Batch:
    labels = torch.randint(4, (3, 5, 4))
    labels[0, :2], labels[2] = 9, 9
    return Batch(torch.randn(3, 3, 5, 4, dtype=torch.float64), labels, torch.arange(3))


@pytest.mark.parametrize("smooth_by", BOTH)
def test_a_mask_has_the_gradient_of_the_mean_margin_of_its_valid_pixels(smooth_by):
    model, batch = nn.Conv2d(3, 4, 1, dtype=torch.float64), masks()
    settings = {"robust": 0.0, "smooth": 2.0, "tail": 0.3, "difference": 1e-4}
    method = built(smooth_by=smooth_by, space="normalized", **settings)
    method.ignore_index = 9
    valid = batch.labels != 9
    logits = model(batch.inputs).movedim(1, -1)[valid]
    pixels = Batch(batch.inputs.movedim(1, -1)[valid], batch.labels[valid], torch.zeros(1))
    matrix = nn.Linear(3, 4, dtype=torch.float64)
    matrix.weight, matrix.bias = nn.Parameter(model.weight[:, :, 0, 0]), model.bias
    # For a 1x1 convolution, each pixel adds its own gradient, divided by the valid pixels.
    gradients = margin_gradient(matrix, pixels)
    first = torch.arange(len(logits)) < 12
    squares = [gradients[first].pow(2).sum() / 12**2, gradients[~first].pow(2).sum() / 20**2]
    decrease = [8 / 255 * gradients[part].abs().sum() / part.sum() for part in (first, ~first)]
    margins = margin(logits, pixels.labels)
    robust = [margins[first].mean() - decrease[0], margins[~first].mean() - decrease[1]]
    robust = torch.stack(robust)
    expected = cross_entropy(logits, pixels.labels) + 2 * torch.where(first, *squares)
    expected = expected + 0.3 * (-robust).exp().mean().log()
    torch.testing.assert_close(method.loss(model, batch), expected)
    found = gradient(method, model, batch)
    method.smooth_by = "double_backward"
    torch.testing.assert_close(found, gradient(method, model, batch), rtol=1e-6, atol=1e-9)


def test_ignored_pixels_change_nothing():
    model, batch = nn.Conv2d(3, 4, 1, dtype=torch.float64), masks()
    method = built(smooth=1.0, tail=0.3, epsilon=0.3, step_size=0.2, space="normalized")
    method.ignore_index = 9
    other = batch.inputs.clone()
    other[(batch.labels == 9)[:, None].expand_as(other)] += 3.0
    changed = Batch(other, batch.labels, batch.index)
    found, expected = (gradient(method, model, each) for each in (changed, batch))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    assert method.loss(model, batch).shape == (12 + 20,)
    # Tokens, of which the first text has two valid ones and the second one.
    labels = torch.tensor([[0, 9, 1], [9, 9, 2]])
    image, weight = image_weights(labels, torch.zeros(3), 9)
    assert (image.tolist(), weight.tolist()) == ([0, 0, 1], [0.5, 0.5, 1.0])


def test_with_mixup_the_terms_use_the_label_of_the_larger_weight():
    model, plain = tanh(), vectors()
    other = torch.randint(4, (12,))
    share = torch.linspace(0, 1, 12, dtype=torch.float64)
    mixup = Batch(plain.inputs, plain.labels, plain.index, other, share)
    larger = Batch(plain.inputs, torch.where(share >= 0.5, plain.labels, other), plain.index)
    torch.testing.assert_close(added(built(), model, mixup), added(built(), model, larger))


def test_terms_of_a_part_of_the_batch_use_its_images_and_valid_pixels_alone():
    model, batch = tanh(norm=True), vectors()
    found = added(built(part=0.25, tail=0.2), model, batch)
    assert found[3:].abs().max() < 1e-14
    terms = added(built(tail=0.2), model, batch.take(slice(0, 3))).mean()
    torch.testing.assert_close(found.mean(), terms)
    model, batch = nn.Conv2d(3, 4, 1, dtype=torch.float64), masks()
    part, whole = (built(part=each, smooth=2.0, space="normalized") for each in (1 / 3, 1.0))
    part.ignore_index = whole.ignore_index = 9
    # The first image has 12 valid pixels, all together have 32.
    terms = added(whole, model, batch.take(slice(0, 1))).mean()
    torch.testing.assert_close(added(part, model, batch).mean(), terms)
    record = part.after_epoch(Predictions(torch.randn(4, 4), torch.arange(4)))
    assert sum(record.values()) == pytest.approx(terms.item())


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_several_processes_use_the_same_images_as_one(processes):
    model = nn.Linear(2, 2)
    for part, size in product((0.25, 0.4, 0.5, 1.0), (8, 25, 50)):
        taken = []
        for rank in range(processes):
            count = count_first_images(model, size, part, rank=rank, processes=processes)
            taken += range(rank, processes * size, processes)[:count]
        alone = count_first_images(model, processes * size, part, rank=0, processes=1)
        assert sorted(taken) == list(range(alone)), (part, size)


def test_the_two_terms_may_use_different_parts_and_batch_norm_gets_two_images():
    model, batch = tanh(norm=True), vectors()
    # The attack uses the running statistics, which each pass would update.
    model[1].momentum = 0.0
    kl = added(built(part=0.5, smooth=0.0), model, batch).mean()
    for smooth_part in (0.25, 1.0):
        smoothness = added(built(part=smooth_part, robust=0.0), model, batch).mean()
        both = added(built(part=0.5, smooth_part=smooth_part), model, batch).mean()
        torch.testing.assert_close(both, kl + smoothness)
    for n in (2, 5):
        small = built(smooth_part=0.25, part=0.1)
        assert gradient(small, model, vectors(n=n)).isfinite().all()
    assert count_first_images(model, 1, 0.25, rank=0, processes=1) == 1


def test_terms_are_due_every_few_steps_with_their_weight():
    model, batches = tanh(), [vectors() for _ in range(5)]
    method = built(every=3)
    for step, batch in enumerate(batches):
        expected = 3 * added(built(), model, batch) * (step % 3 == 0)
        # SAM computes the loss twice per step.
        for _ in range(2):
            torch.testing.assert_close(added(method, model, batch), expected, rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize("gradients", [1, 2])
def test_a_repeated_batch_has_the_terms_as_often_as_others(gradients):
    model, batch = tanh(), vectors()
    method, has_terms = built(every=4), []
    for _ in range(16):
        has_terms.append(added(method, model, batch).abs().max().item() > 1e-10)
        if gradients == 1:
            # An epoch of one step: the same batch is a new step.
            method.after_epoch(Predictions(torch.randn(4, 4), torch.arange(4)))
    # Once in four steps, with one gradient each or, for SAM, two.
    steps = [True, False, False, False] * (16 // (4 * gradients))
    assert has_terms == [due for due in steps for _ in range(gradients)]


def test_a_step_does_not_synchronise_with_the_device(monkeypatch):
    model, batch, method = tanh(), vectors(), built(tail=0.1)
    method.loss(model, batch)

    def waits(_):
        raise AssertionError("a GPU would have to finish first")

    for name in ("__float__", "item", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    method.loss(model, batch).mean().backward()


def test_the_mean_of_each_term_is_recorded_after_an_epoch():
    model, batches = tanh(), [vectors() for _ in range(3)]
    val = Predictions(torch.randn(4, 4), torch.arange(4))
    whole, kl, smoothness = built(), built(smooth=0.0), built(robust=0.0)
    sums = {"robust_term": 0.0, "slope_term": 0.0}
    for batch in batches:
        whole.loss(model, batch)
        sums["robust_term"] += added(kl, model, batch).mean().item()
        sums["slope_term"] += added(smoothness, model, batch).mean().item()
    record = whole.after_epoch(val)
    assert record == {name: pytest.approx(each / 3) for name, each in sums.items()}
    assert kl.after_epoch(val).keys() == {"robust_term"}
    # The sums start again at zero.
    assert whole.after_epoch(val) == {}


def test_half_precision_keeps_the_direction_of_the_gradient_or_raises():
    model, batch = tanh().float(), vectors(n=30)
    batch = replace(batch, inputs=batch.inputs.float())
    method, differing = built(smooth=1.0), built(smooth_by="finite_difference")
    expected = gradient(method, model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradient(method, model, batch)
        with pytest.raises(ValueError, match="bfloat16 has too few digits for finite diff"):
            differing.loss(model, batch)
    raises = pytest.raises(ValueError, match=r"^float16 has too few digits")
    with torch.autocast("cpu", dtype=torch.float16), raises:
        differing.loss(model, batch)
    assert functional.cosine_similarity(found, expected, dim=0) > 0.98
    for detach_clean in (False, True):
        clean = torch.randn(3, 4, requires_grad=True)
        term = built(detach_clean=detach_clean)._divergence(clean, torch.randn(3, 4))
        assert term.requires_grad != detach_clean


@pytest.mark.parametrize("smooth_by", BOTH)
@pytest.mark.parametrize("name", ["text_cnn", "bag_of_embeddings"])
def test_text_is_perturbed_in_its_embedding(name, smooth_by):
    model = models.build(name, classes=4, shape=(9,), vocabulary=30).double()
    tokens = torch.randint(2, 30, (6, 9))
    tokens[:, 6:] = 0
    batch = Batch(tokens, torch.randint(4, (6,)), torch.arange(6))
    smooth = added(built(robust=0.0, smooth=1.0, smooth_by=smooth_by), model, batch)
    assert (smooth > 0).all()
    if name == "bag_of_embeddings":
        # The mean of six vectors: each has a sixth of the gradient of the head.
        head = Batch(model.features(tokens), batch.labels, batch.index)
        torch.testing.assert_close(smooth, margin_gradient(model.head, head).pow(2).sum(1) / 6)
    assert gradient(built(smooth_by=smooth_by), model, batch).isfinite().all()
    assert not model.embedding._forward_hooks


def test_images_of_unknown_scale_warn_once_and_only_for_pixel_units():
    model, batch = nn.Sequential(nn.Flatten(), nn.Linear(48, 4)).double(), images()
    method = built()
    with pytest.warns(UserWarning, match=r"set method.scale .* or pass space=\"normalized\""):
        method.loss(model, batch)
    known = built()
    known.scale = SCALE
    # None of these warns, which would be an error here.
    for quiet in (method, known, built(space="normalized"), built(robust=0.0, smooth=0.0)):
        quiet.loss(model, images())


def test_mistakes_in_a_custom_loop_raise_in_one_line(as_a_user_runs_it):
    model, batch = nn.Conv2d(3, 4, 1, dtype=torch.float64), masks()
    for label in (255, -100):
        marked = replace(batch, labels=torch.where(batch.labels == 9, label, batch.labels))
        with pytest.raises(ValueError, match=rf"labels must lie in .*, got {label}.*ignore_index$"):
            built(space="normalized").loss(model, marked)
    stored = Batch(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2).long(), batch.index)
    with pytest.raises(TypeError, match=r"images must be floating point .* got torch.uint8"):
        built().loss(model, stored)
    with torch.no_grad(), pytest.raises(ValueError, match=r"call loss outside of torch.no_grad"):
        built().loss(tanh(), vectors())
    embeddings = nn.ModuleList([nn.Embedding(5, 3), nn.Embedding(5, 3)])
    tokens = Batch(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2).long(), torch.arange(2))
    with pytest.raises(ValueError, match=r"must have exactly one nn.Embedding .*, got 2"):
        built().loss(embeddings, tokens)


def test_the_part_of_the_batch_is_that_of_all_processes():
    class FirstOfTwo(methods.SingleProcess):
        def total(self, tensor):
            return 2 * tensor

    # Nine of 2 x 10 examples: five of the first process; alone it has four of ten.
    model, batch = tanh(), vectors(10)
    method, alone = built(part=0.45), built(part=0.45)
    method.ranks = FirstOfTwo()
    assert int((added(method, model, batch) != 0).sum()) == 5
    assert int((added(alone, model, batch) != 0).sum()) == 4


@pytest.mark.parametrize("setting", ["part", "smooth_part"])
def test_more_than_the_whole_batch_is_refused(setting):
    with pytest.raises(ValueError, match=rf"{setting} must lie in \(0, 1\], got 1.5"):
        methods.build("calmo", classes=4, **{setting: 1.5})
