"""The moving average of weights."""

import pytest
import torch
from torch import nn

from calibrant.models import build
from calibrant.training.averaging import Average


def bits(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_the_average_is_the_sum_over_all_steps_by_hand():
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    average = Average(model, 0.75)
    first = average.state_dict()
    for step, value in enumerate((4.0, 0.0)):
        nn.init.constant_(model.weight, value)
        average.update(model, step)
    # 8 -> 0.75 * 8 + 0.25 * 4 = 7 -> 0.75 * 7 + 0.25 * 0 = 5.25.
    assert average.state_dict()["weight"].tolist() == [[5.25, 5.25]]
    # A state is a copy.
    assert first["weight"].tolist() == [[8.0, 8.0]]


def test_an_average_of_decay_1_is_the_mean_of_all_steps_from_its_start():
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1))
    average = Average(model, 1.0, start=2)
    found = []
    for step, value in enumerate((9.0, 7.0, 1.0, 2.0, 6.0)):
        nn.init.constant_(model[0].weight, value)
        model[1].running_mean.fill_(10 * value)
        model[1].num_batches_tracked.fill_(step)
        average.update(model, step)
        state = average.state_dict()
        found.append(float(state["0.weight"][0, 0]))
        assert float(state["1.running_mean"]) == pytest.approx(10 * found[-1])
        assert int(state["1.num_batches_tracked"]) == step
    # The newest weights until step 2, then 1, (1 + 2) / 2 and (1 + 2 + 6) / 3.
    assert found == pytest.approx([9.0, 7.0, 1.0, 1.5, 3.0])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_model_has_the_average_inside_and_its_own_bits_afterwards(memory_format):
    model = build("small_cnn", classes=3, shape=(1, 6, 6), width=0.125)
    model.to(memory_format=memory_format)
    average = Average(model, 0.5)
    for step in range(3):
        with torch.no_grad():
            for each in model.parameters():
                each.add_(torch.randn_like(each))
            model.train()(torch.randn(4, 1, 6, 6))
        average.update(model, step)
    own, state = bits(model), average.state_dict()
    # Buffers are copied and not averaged.
    assert all(torch.equal(state[name], buffer) for name, buffer in model.named_buffers())
    assert int(state["norm1.num_batches_tracked"]) == 3
    assert not torch.equal(state["head.weight"], model.head.weight)
    with average.applied(model):
        assert same(bits(model), state)
        model.train()(torch.randn(2, 1, 6, 6))
    assert same(bits(model), own)
    with pytest.raises(KeyError), average.applied(model):
        raise KeyError
    assert same(bits(model), own)
    average.copy_to(model)
    assert same(bits(model), state)
