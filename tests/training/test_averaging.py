"""The moving average of weights."""

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
    with pytest.raises(KeyError), average.applied(model):
        raise KeyError
    assert same(bits(model), own)
    average.copy_to(model)
    assert same(bits(model), average.state_dict())


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
