"""Networks that mask classes by logits of -inf, and validation data that do."""

import pytest
import torch
from torch import nn

from calibrant import Predictions, methods
from calibrant.data import Batch
from calibrant.losses import PENALTIES
from calibrant.methods import METHODS

# They compute the last layer again by itself, so networks that mask its output raise.
LAST_LAYER = {"gamma_net", "meta_smoothing"}


class Masking(nn.Module):
    """Four classes; the sign of one input masks one of them, another all but the first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(5, 4, dtype=torch.float64)

    def forward(self, inputs):
        masked = torch.zeros(len(inputs), 4, dtype=torch.bool)
        masked[:, 3] = inputs[:, 0] > 0
        masked[:, 1:] |= (inputs[:, 1] > 1)[:, None]
        return self.head(inputs).masked_fill(masked, -torch.inf)


def examples(n: int = 40) -> Batch:
    inputs = torch.randn(n, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Far from where masks change: some methods perturb the inputs.
    inputs[:, :2] = inputs[:, :2].sign() * 5
    labels = torch.where(inputs[:, 1] > 1, 0, torch.arange(n) % 3)
    return Batch(inputs, labels, torch.arange(n))


@pytest.mark.parametrize("name", sorted(METHODS.keys() - LAST_LAYER))
def test_a_method_trains_on_masked_logits(name):
    method, model, batch = methods.build(name, classes=4), Masking(), examples()
    method.counts = torch.tensor([9, 9, 9, 1])
    for _ in range(2):
        loss = method.loss(model, batch)
        assert loss.isfinite().all()
        model.zero_grad()
        loss.mean().backward()
        assert model.head.weight.grad.isfinite().all()
        assert model.head.weight.grad.abs().sum() > 0
        method.after_epoch(Predictions(model(batch.inputs).detach(), batch.labels))


def test_multipliers_and_weights_use_the_examples_that_allow_the_class():
    logits = torch.tensor([[0.0, -4.0, -torch.inf], [-2.0, 0.0, -6.0]]).double()
    val = Predictions(logits, [0, 1])
    alm = methods.build("cals_alm", classes=3, margin=2.0, least=0.1)
    alm.after_epoch(val)
    derivative = PENALTIES["phr"].derivative
    # Constraints (d - 2) / 2: -1 and 0 of the first class, 1 and -1 of the second, 2 of the third.
    expected = [
        float(derivative(torch.tensor(h), 0.1, 1.0).clamp(min=0.1).mean())
        for h in ([-1.0, 0.0], [1.0, -1.0], [2.0])
    ]
    assert alm.multipliers.tolist() == pytest.approx(expected)
    assert alm.last.tolist() == pytest.approx([-0.5, 0.0, 2.0])

    rule = methods.build("cals_hr", classes=3, margin=2.0)
    rule.after_epoch(val)
    assert rule.scores.tolist() == pytest.approx([0.0, 0.1 * 1.0, 0.1 * 4.0])


@pytest.mark.parametrize("name", sorted(LAST_LAYER))
def test_a_method_of_the_last_layer_raises_with_the_reason(name):
    with pytest.raises(ValueError, match="with nothing after it"):
        methods.build(name, classes=4).loss(Masking(), examples())
