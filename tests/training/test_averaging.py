"""The moving average of weights."""

import io

import pytest
import torch
from torch import nn

from calibrant.models import build
from calibrant.training.averaging import Average


def network(seed=0):
    return build("small_cnn", classes=3, shape=(1, 6, 6), width=0.125, seed=seed)


def bits(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def moved(model, step):
    torch.manual_seed(step)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each))
        model.train()(torch.randn(4, 1, 6, 6))


def test_the_average_is_the_sum_over_all_steps_by_hand():
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    average = Average(model, 0.75)
    for value in (4.0, 0.0):
        nn.init.constant_(model.weight, value)
        average.update(model)
    # 8 -> 0.75 * 8 + 0.25 * 4 = 7 -> 0.75 * 7 + 0.25 * 0 = 5.25.
    assert average.state_dict()["weight"].tolist() == [[5.25, 5.25]]


def test_buffers_are_copied_and_not_averaged():
    model = network()
    average = Average(model, 0.9)
    for step in range(3):
        moved(model, step)
        average.update(model)
    state = average.state_dict()
    for name, buffer in model.named_buffers():
        assert torch.equal(state[name], buffer)
    assert int(state["norm1.num_batches_tracked"]) == 3
    assert not torch.equal(state["head.weight"], model.head.weight)


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_at_its_ends_it_is_the_newest_or_the_first_weights(decay):
    model = network()
    first = bits(model)
    average = Average(model, decay)
    moved(model, 1)
    average.update(model)
    expected = first if decay else bits(model)
    state = average.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name, _ in model.named_parameters())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_model_has_the_average_inside_and_its_own_bits_afterwards(memory_format):
    model = network().to(memory_format=memory_format)
    average = Average(model, 0.5)
    moved(model, 1)
    average.update(model)
    own, x = bits(model), torch.randn(2, 1, 6, 6)
    with average.applied(model):
        assert same(bits(model), average.state_dict())
        model.train()(x)
    assert same(bits(model), own)
    average.copy_to(model)
    assert same(bits(model), average.state_dict())


def test_the_models_own_bits_come_back_after_an_error_too():
    model = network()
    average = Average(model, 0.5)
    moved(model, 1)
    own = bits(model)
    with pytest.raises(KeyError), average.applied(model):
        raise KeyError
    assert same(bits(model), own)


def test_a_restored_average_goes_on_bit_for_bit():
    model = network()
    average = Average(model, 0.9)
    for step in range(5):
        moved(model, step)
        average.update(model)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "average": average.state_dict()}, file)
    for step in range(5, 10):
        moved(model, step)
        average.update(model)
    file.seek(0)
    held = torch.load(file, weights_only=True)
    again = network(seed=3)
    again.load_state_dict(held["model"])
    restored = Average(network(seed=4), 0.9)
    restored.load_state_dict(held["average"])
    for step in range(5, 10):
        moved(again, step)
        restored.update(again)
    assert same(restored.state_dict(), average.state_dict())


def test_a_state_is_a_copy():
    model = network()
    average = Average(model, 0.5)
    state = average.state_dict()
    before = state["head.weight"].clone()
    moved(model, 1)
    average.update(model)
    assert torch.equal(state["head.weight"], before)


def test_the_state_of_another_model_is_refused():
    average = Average(nn.Linear(2, 3), 0.5)
    with pytest.raises(ValueError, match="another model: 'bias' is in only one of them"):
        average.load_state_dict({"weight": torch.zeros(3, 2)})
    with pytest.raises(ValueError, match=r"'weight' must have shape \(3, 2\), got \(2, 2\)"):
        average.load_state_dict({"weight": torch.zeros(2, 2), "bias": torch.zeros(3)})


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan")])
def test_a_decay_that_is_no_fraction_is_refused(decay):
    with pytest.raises(ValueError, match=r"decay must lie in \[0, 1\]"):
        Average(nn.Linear(1, 1), decay)
