"""CalMO: each term against what is known of linear networks, its gradient, and what it leaves."""

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
from calibrant.methods.neighbourhood import first_images
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


def steepness(model: nn.Linear, batch: Batch) -> torch.Tensor:
    """Of a linear network: the label's weights less those of the best other class."""
    best = model(batch.inputs).scatter(1, batch.labels[:, None], -torch.inf).argmax(1)
    return model.weight[batch.labels] - model.weight[best]


def test_without_a_ball_the_robust_term_is_zero_and_so_is_its_gradient():
    model, batch = tanh(norm=True), vectors()
    method = built(epsilon=0.0, smooth=0.0, robust=7.0)
    plain = cross_entropy(model(batch.inputs), batch.labels)
    torch.testing.assert_close(method.loss(model, batch), plain, rtol=0, atol=1e-15)
    expected = gradient(methods.build("cross_entropy", classes=4), model, batch)
    torch.testing.assert_close(gradient(method, model, batch), expected)


@pytest.mark.parametrize("settings", [{"robust": 0.0, "smooth": 0.0}, {"every": 2}])
def test_without_terms_the_gradient_is_that_of_cross_entropy(settings):
    model, batch = tanh(norm=True), vectors()
    method = built(**settings)
    method.step = 1
    expected = gradient(methods.build("cross_entropy", classes=4), model, batch)
    torch.testing.assert_close(gradient(method, model, batch), expected, rtol=0, atol=1e-14)


def test_the_robust_term_is_the_divergence_that_torch_computes():
    model, batch = tanh(), vectors()
    shifts = []
    handle = model.register_forward_pre_hook(lambda _, given: shifts.append(given[0].detach()))
    method = built(smooth=0.0, robust=1.0, epsilon=0.5, step_size=0.2)
    each = method.loss(model, batch)
    handle.remove()
    # Three steps, the clean pass, the pass of what the attack found.
    assert len(shifts) == 5
    assert (shifts[-1] - batch.inputs).abs().max() == pytest.approx(0.5)
    log_p, log_q = (model(x).log_softmax(1) for x in (batch.inputs, shifts[-1]))
    expected = functional.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    term = each.mean() - cross_entropy(model(batch.inputs), batch.labels).mean()
    torch.testing.assert_close(term, expected)
    assert expected > 0.001


@pytest.mark.parametrize("batch_norm", ["eval", "train"])
def test_the_attack_is_in_the_mode_that_was_asked_for_and_all_else_in_training_mode(batch_norm):
    model, modes = tanh(norm=True), []
    model.register_forward_pre_hook(lambda module, _: modes.append(module[1].training))
    built(batch_norm=batch_norm, smooth_by="finite_difference").loss(model, vectors())
    assert modes == [batch_norm == "train"] * 3 + [True] * 3


@pytest.mark.parametrize("smooth_by", BOTH)
def test_smoothness_of_a_linear_network_is_known(smooth_by):
    model, batch = nn.Linear(5, 4, dtype=torch.float64), vectors()
    method = built(robust=0.0, smooth=0.3, smooth_by=smooth_by)
    squares = steepness(model, batch).pow(2).sum(1)
    expected = cross_entropy(model(batch.inputs), batch.labels) + 0.3 * squares
    torch.testing.assert_close(method.loss(model, batch), expected)
    found = gradient(method, model, batch)
    model.zero_grad()
    expected.mean().backward()
    # Linear, so that differences are exact while they do not change the second best class.
    torch.testing.assert_close(found, flat(model), rtol=0, atol=1e-12)


@pytest.mark.parametrize("space", ["pixel", "normalized"])
def test_slopes_are_in_the_units_of_the_space(space):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 4)).double()
    batch = images()
    method = built(robust=0.0, smooth=1.0, space=space)
    method.scale = SCALE
    flat = Batch(batch.inputs.flatten(1), batch.labels, batch.index)
    slopes = steepness(model[1], flat).view(-1, 3, 4, 4)
    if space == "pixel":
        slopes = slopes / torch.tensor(SCALE.std, dtype=torch.float64)[:, None, None]
    plain = cross_entropy(model(batch.inputs), batch.labels)
    expected = plain + slopes.pow(2).sum((1, 2, 3))
    torch.testing.assert_close(method.loss(model, batch), expected)


@pytest.mark.parametrize("smooth_by", BOTH)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_tail_of_a_linear_network_is_known(norm, smooth_by):
    model, batch = nn.Linear(5, 4, dtype=torch.float64), vectors()
    settings = {"tail": 0.7, "tail_temperature": 0.5, "attack_norm": norm, "epsilon": 0.1}
    method = built(robust=0.0, smooth=0.0, smooth_by=smooth_by, difference=1e-3, **settings)
    logits = model(batch.inputs)
    lost = 0.1 * dual_norm(steepness(model, batch), norm)
    robust = margin(logits, batch.labels) - lost
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
    # The attack jumps where a gradient changes sign: it is held where it was found.
    held = 0.3 * torch.randn_like(batch.inputs).sign()
    monkeypatch.setattr("calibrant.methods.calmo.pgd", lambda *_, **__: held)
    found = gradient(method, model, batch)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    way = torch.randn_like(weights)
    ends = []
    for side in (1e-5, -1e-5):
        nn.utils.vector_to_parameters(weights + side * way, model.parameters())
        ends.append(method.loss(model, batch).mean().item())
    assert (found @ way).item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch_norm"])
@pytest.mark.parametrize("terms", [{"smooth": 0.5}, {"smooth": 0.2, "tail": 0.5, "part": 0.5}])
def test_differences_approach_the_double_backward(norm, terms):
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


@pytest.mark.parametrize("terms", [{"smooth": 0.5}, {"smooth": 0.2, "tail": 0.5}])
def test_differences_of_a_linear_network_are_exact_however_far_they_reach(terms):
    model, batch = nn.Linear(5, 4).double(), vectors(n=30)
    terms = {**terms, "robust": 0.0, "difference": 50.0}
    exact, other = (gradient(built(**terms, smooth_by=by), model, batch) for by in BOTH)
    # So far away another class comes next.
    torch.testing.assert_close(other, exact, rtol=0, atol=1e-10)


def test_a_difference_is_as_long_as_asked_for_over_the_images():
    model, batch, seen = tanh(), vectors(n=30), []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    built(robust=0.0, smooth_by="finite_difference", difference=0.3).loss(model, batch)
    clean, shifted = seen
    length = (shifted - clean).pow(2).sum(1).mean().sqrt()
    assert length.item() == pytest.approx(0.3)


@pytest.mark.parametrize("smooth_by", BOTH)
@pytest.mark.parametrize("batch_norm", ["eval", "train"])
def test_nothing_but_the_clean_pass_leaves_a_trace(smooth_by, batch_norm):
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


def test_all_passes_of_a_step_drop_the_same_features():
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
def test_a_mask_has_the_slope_of_the_mean_margin_of_its_pixels(smooth_by):
    model, batch = nn.Conv2d(3, 4, 1, dtype=torch.float64), masks()
    settings = {"robust": 0.0, "smooth": 2.0, "tail": 0.3, "difference": 1e-4}
    method = built(smooth_by=smooth_by, space="normalized", **settings)
    method.ignore_index = 9
    kept = batch.labels != 9
    rows = model(batch.inputs).movedim(1, -1)[kept]
    pixels = Batch(batch.inputs.movedim(1, -1)[kept], batch.labels[kept], torch.zeros(1))
    matrix = nn.Linear(3, 4, dtype=torch.float64)
    matrix.weight, matrix.bias = nn.Parameter(model.weight[:, :, 0, 0]), model.bias
    # Of a 1x1 convolution, a pixel's slope is its own, divided by the pixels that count.
    slopes = steepness(matrix, pixels)
    first = torch.arange(len(rows)) < 12
    squares = [slopes[first].pow(2).sum() / 12**2, slopes[~first].pow(2).sum() / 20**2]
    lost = [8 / 255 * slopes[part].abs().sum() / part.sum() for part in (first, ~first)]
    lead = margin(rows, pixels.labels)
    robust = torch.stack([lead[first].mean() - lost[0], lead[~first].mean() - lost[1]])
    expected = cross_entropy(rows, pixels.labels) + 2 * torch.where(first, *squares)
    expected = expected + 0.3 * (-robust).exp().mean().log()
    torch.testing.assert_close(method.loss(model, batch), expected)
    found = gradient(method, model, batch)
    method.smooth_by = "double_backward"
    torch.testing.assert_close(found, gradient(method, model, batch), rtol=1e-6, atol=1e-9)


def test_pixels_that_do_not_count_change_nothing():
    model, batch = nn.Conv2d(3, 4, 1, dtype=torch.float64), masks()
    method = built(smooth=1.0, tail=0.3, epsilon=0.3, step_size=0.2, space="normalized")
    method.ignore_index = 9
    other = batch.inputs.clone()
    other[(batch.labels == 9)[:, None].expand_as(other)] += 3.0
    changed = Batch(other, batch.labels, batch.index)
    found, expected = (gradient(method, model, each) for each in (changed, batch))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    assert method.loss(model, batch).shape == (12 + 20,)


def test_of_mixed_images_the_terms_take_the_label_of_the_larger_part():
    model, plain = tanh(), vectors()
    other = torch.randint(4, (12,))
    share = torch.linspace(0, 1, 12, dtype=torch.float64)
    mixed = Batch(plain.inputs, plain.labels, plain.index, other, share)
    larger = Batch(plain.inputs, torch.where(share >= 0.5, plain.labels, other), plain.index)
    method, alone = built(), methods.build("cross_entropy", classes=4)
    terms = method.loss(model, larger) - alone.loss(model, larger)
    torch.testing.assert_close(method.loss(model, mixed), alone.loss(model, mixed) + terms)


def test_terms_of_a_part_of_the_batch_are_those_of_it_alone():
    model, batch = tanh(norm=True), vectors()
    method, alone = built(part=0.25, tail=0.2), methods.build("cross_entropy", classes=4)
    first = batch.take(slice(0, 3))
    whole = built(tail=0.2)
    terms = (whole.loss(model, first) - alone.loss(model, first)).mean()
    each = method.loss(model, batch)
    torch.testing.assert_close(each[3:], alone.loss(model, batch)[3:], rtol=1e-14, atol=0)
    torch.testing.assert_close(each.mean(), alone.loss(model, batch).mean() + terms)


def test_of_masks_the_mean_of_a_part_is_over_its_pixels_that_count():
    model, batch = nn.Conv2d(3, 4, 1, dtype=torch.float64), masks()
    alone = methods.build("cross_entropy", classes=4)
    part, whole = (built(part=each, smooth=2.0, space="normalized") for each in (1 / 3, 1.0))
    for method in (alone, part, whole):
        method.ignore_index = 9
    # The first image has 12 pixels that count, all together have 32.
    first = batch.take(slice(0, 1))
    terms = (whole.loss(model, first) - alone.loss(model, first)).mean()
    found = part.loss(model, batch).mean() - alone.loss(model, batch).mean()
    torch.testing.assert_close(found, terms)
    row = part.after_epoch(Predictions(torch.randn(4, 4), torch.arange(4)))
    assert sum(row.values()) == pytest.approx(terms.item())


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_all_processes_together_take_the_images_that_one_would(processes):
    model = nn.Linear(2, 2)
    for part, size in product((0.25, 0.4, 0.5, 1.0), (8, 25, 50)):
        taken = []
        for rank in range(processes):
            count = first_images(model, size, part, rank=rank, processes=processes)
            taken += range(rank, processes * size, processes)[:count]
        alone = first_images(model, processes * size, part, rank=0, processes=1)
        assert sorted(taken) == list(range(alone)), (part, size)


@pytest.mark.parametrize("n", [2, 5])
def test_batch_norm_sees_two_images_of_a_small_batch(n):
    model, batch = tanh(norm=True), vectors(n=n)
    assert gradient(built(smooth_part=0.25, part=0.1), model, batch).isfinite().all()
    assert first_images(model, 1, 0.25, rank=0, processes=1) == 1


def test_the_two_terms_may_have_parts_of_their_own():
    model, batch = tanh(norm=True), vectors()
    alone = methods.build("cross_entropy", classes=4).loss(model, batch).mean()
    kl = built(part=0.5, smooth=0.0).loss(model, batch).mean() - alone
    slopes = built(part=0.25, robust=0.0).loss(model, batch).mean() - alone
    both = built(part=0.5, smooth_part=0.25).loss(model, batch).mean()
    torch.testing.assert_close(both, alone + kl + slopes)
    shared = built(part=0.5, smooth_part=1.0).loss(model, batch).mean()
    slopes = built(robust=0.0).loss(model, batch).mean() - alone
    torch.testing.assert_close(shared, alone + kl + slopes)


def test_terms_come_every_few_steps_with_their_weight_and_a_state_goes_on_in_time():
    model, batches = tanh(), [vectors() for _ in range(5)]
    method, alone = built(every=3), methods.build("cross_entropy", classes=4)
    left = built(every=3)
    for place, batch in enumerate(batches):
        expected = alone.loss(model, batch)
        if place % 3 == 0:
            expected = expected + 3 * (built().loss(model, batch) - expected)
        torch.testing.assert_close(method.loss(model, batch), expected)
        # Sharpness-aware descent asks twice for a step.
        torch.testing.assert_close(method.loss(model, batch), expected)
        again = built(every=3)
        again.load_state_dict(left.state_dict())
        torch.testing.assert_close(again.loss(model, batch), expected)
        left = again
    with pytest.raises(ValueError, match="not a state of Calmo"):
        method.load_state_dict({"epoch": 1})


@pytest.mark.parametrize("gradients", [1, 2])
def test_a_batch_that_is_used_again_has_the_terms_as_often_as_others(gradients):
    model, batch = tanh(), vectors()
    method, plain = built(every=4), methods.build("cross_entropy", classes=4)
    bare = plain.loss(model, batch)
    added = []
    for _ in range(16):
        added.append(not torch.allclose(method.loss(model, batch), bare, rtol=1e-12, atol=0))
        if gradients == 1:
            # An epoch of one step: what comes next is another.
            method.after_epoch(Predictions(torch.randn(4, 4), torch.arange(4)))
    # Once in four steps, with one gradient each or, as sharpness-aware descent takes them, two.
    steps = [True, False, False, False] * (16 // (4 * gradients))
    assert added == [due for due in steps for _ in range(gradients)]


def test_a_step_does_not_wait_for_the_values_of_its_terms(monkeypatch):
    model, batch, method = tanh(), vectors(), built(tail=0.1)
    method.loss(model, batch)

    def waits(_):
        raise AssertionError("a GPU would have to finish first")

    for name in ("__float__", "item", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    method.loss(model, batch).mean().backward()


def test_the_mean_of_each_term_is_reported_after_an_epoch_and_survives_a_resume():
    model, batches = tanh(), [vectors() for _ in range(3)]
    val = Predictions(torch.randn(4, 4), torch.arange(4))
    whole, kl, slopes = built(), built(smooth=0.0), built(robust=0.0)
    plain = methods.build("cross_entropy", classes=4)
    added = {"robust_term": [], "slope_term": []}
    for batch in batches:
        again = built()
        again.load_state_dict(whole.state_dict())
        whole = again
        whole.loss(model, batch)
        base = plain.loss(model, batch).mean()
        added["robust_term"].append((kl.loss(model, batch).mean() - base).item())
        added["slope_term"].append((slopes.loss(model, batch).mean() - base).item())
    row = whole.after_epoch(val)
    assert row == {name: pytest.approx(sum(each) / 3) for name, each in added.items()}
    assert kl.after_epoch(val).keys() == {"robust_term"}
    # The next epoch starts at nothing.
    assert whole.after_epoch(val) == {}


def test_half_precision_keeps_the_direction_of_the_gradient_or_is_refused():
    model, batch = tanh().float(), vectors(n=30)
    batch = replace(batch, inputs=batch.inputs.float())
    method, differing = built(smooth=1.0), built(smooth_by="finite_difference")
    expected = gradient(method, model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradient(method, model, batch)
        with pytest.raises(ValueError, match="bfloat16 has too few digits for finite diff"):
            differing.loss(model, batch)
    refused = pytest.raises(ValueError, match=r"^float16 has too few digits")
    with torch.autocast("cpu", dtype=torch.float16), refused:
        differing.loss(model, batch)
    assert functional.cosine_similarity(found, expected, dim=0) > 0.98


@pytest.mark.parametrize("detach_clean", [False, True])
def test_no_gradient_passes_through_detached_answers(detach_clean):
    clean = torch.randn(3, 4, requires_grad=True)
    term = built(detach_clean=detach_clean)._divergence(clean, torch.randn(3, 4))
    assert term.requires_grad != detach_clean


@pytest.mark.parametrize("smooth_by", BOTH)
@pytest.mark.parametrize("name", ["text_cnn", "bag_of_embeddings"])
def test_text_is_shifted_in_its_embedding(name, smooth_by):
    model = models.build(name, classes=4, shape=(9,), vocabulary=30).double()
    tokens = torch.randint(2, 30, (6, 9))
    tokens[:, 6:] = 0
    batch = Batch(tokens, torch.randint(4, (6,)), torch.arange(6))
    alone = methods.build("cross_entropy", classes=4).loss(model, batch)
    rough = built(robust=0.0, smooth=1.0, smooth_by=smooth_by)
    smooth = rough.loss(model, batch) - alone
    assert (smooth > 0).all()
    if name == "bag_of_embeddings":
        # The mean of six vectors: each has a sixth of the slope of the head.
        head = Batch(model.features(tokens), batch.labels, batch.index)
        torch.testing.assert_close(smooth, steepness(model.head, head).pow(2).sum(1) / 6)
    assert gradient(built(smooth_by=smooth_by), model, batch).isfinite().all()
    assert not model.embedding._forward_hooks


def test_token_numbers_without_one_embedding_are_refused(as_a_user_runs_it):
    model = nn.ModuleList([nn.Embedding(5, 3), nn.Embedding(5, 3)])
    batch = Batch(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2).long(), torch.arange(2))
    with pytest.raises(ValueError, match=r"must have exactly one, .*; it has 2"):
        built().loss(model, batch)


def test_images_of_unknown_scale_are_warned_of_once_and_only_if_pixels_were_asked_for():
    model, batch = nn.Sequential(nn.Flatten(), nn.Linear(48, 4)).double(), images()
    method = built()
    with pytest.warns(UserWarning, match=r"set method.scale .* or give space=\"normalized\""):
        method.loss(model, batch)
    known = built()
    known.scale = SCALE
    # None of these warns, which would be an error here.
    for quiet in (method, known, built(space="normalized"), built(robust=0.0, smooth=0.0)):
        quiet.loss(model, images())


def test_what_a_loop_of_ones_own_forgot_is_said_in_one_line(as_a_user_runs_it):
    model, batch = nn.Conv2d(3, 4, 1, dtype=torch.float64), masks()
    for label in (255, -100):
        marked = replace(batch, labels=torch.where(batch.labels == 9, label, batch.labels))
        with pytest.raises(ValueError, match=rf"label {label} is no class: .* ignore_index$"):
            built(space="normalized").loss(model, marked)
    stored = Batch(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2).long(), batch.index)
    with pytest.raises(TypeError, match=r"images must be floating point .* got torch.uint8"):
        built().loss(model, stored)
    with torch.no_grad(), pytest.raises(ValueError, match=r"call loss outside of torch.no_grad"):
        built().loss(tanh(), vectors())
    with pytest.raises(ValueError, match="seen must be 3 numbers"):
        built().load_state_dict({"step": 1, "seen": torch.zeros(2)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"robust": -1.0}, "robust must be at least 0, got -1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"part": 0.0}, r"part must lie in \(0, 1\], got 0"),
        ({"attack_norm": "l1"}, "attack_norm must be one of"),
        ({"smooth_by": "hand"}, "smooth_by must be one of"),
        ({"difference": 0.0}, "difference must be positive"),
    ],
)
def test_wrong_settings_are_refused(settings, message, as_a_user_runs_it):
    with pytest.raises(ValueError, match=message):
        built(**settings)
