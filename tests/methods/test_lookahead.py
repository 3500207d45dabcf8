"""The lookahead step of the last layer: its outcome and its gradient."""

import pytest
import torch
from torch import nn

from calibrant.losses import cross_entropy, dece, focal, sece
from calibrant.methods.gamma_net import focal_gradient
from calibrant.methods.heads import find_head, find_inner, forward_with_features
from calibrant.methods.lookahead import Lookahead, closed_form, double_backward

N, M, D, K = 10, 16, 5, 3
OBJECTIVES = {
    "sece": lambda logits, labels: sece(logits, labels, bandwidth=0.1, form="leave_one_out"),
    "dece": dece,
    "sece+ce": lambda z, y: cross_entropy(z, y).mean() + 0.5 * sece(z, y, bandwidth=0.1),
}


def made(head: nn.Module | None = None, objective: str = "sece", lr: float = 0.7):
    """A lookahead step in float64, and the labels of the training examples."""
    torch.manual_seed(3)
    head = head or nn.Linear(D, K, dtype=torch.float64)
    features, meta = torch.randn(N, D).double(), 2 * torch.randn(M, D).double()
    labels, meta_labels = torch.randint(K, (N,)), torch.randint(K, (M,))
    step = Lookahead.of(head, features, meta, lr, lambda z: OBJECTIVES[objective](z, meta_labels))
    return step, labels


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bias", [True, False])
def test_the_closed_form_is_the_derivative_through_the_step(objective, bias):
    step, labels = made(nn.Linear(D, K, bias=bias, dtype=torch.float64), objective)
    gamma = torch.linspace(0, 5, N).double()
    value, gradient = closed_form(step, gamma, lambda z, own: focal_gradient(z, labels, own))
    other, expected = double_backward(step, gamma, lambda z, own: focal(z, labels, gamma=own))
    torch.testing.assert_close(value, other, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-8)
    assert expected.abs().max() > 1e-5


def test_a_convolution_of_one_pixel_is_a_linear_layer():
    linear, convolution = nn.Linear(D, K), nn.Conv2d(D, K, 1)
    convolution.load_state_dict(
        {"weight": linear.weight.detach()[:, :, None, None], "bias": linear.bias.detach()}
    )
    assert torch.equal(made(linear)[0].weight, made(convolution)[0].weight)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 4.0])
def test_the_gradient_of_focal_is_that_of_autograd_also_where_it_saturates(gamma):
    logits = torch.tensor(
        [[0.3, -1, 2], [8, 0, 0], [11, 0, 0], [30, 0, -3], [400, 0, 1], [-300, 0, 2]],
        dtype=torch.float64,
    ).requires_grad_()
    labels, own = torch.zeros(6, dtype=torch.int64), torch.full((6,), gamma).double()
    focal(logits, labels, gamma=own).sum().backward()
    own.requires_grad_()
    gradients = focal_gradient(logits.detach(), labels, own)
    torch.testing.assert_close(gradients.detach(), logits.grad, rtol=1e-9, atol=1e-16)
    (second,) = torch.autograd.grad(gradients.sum(), own)
    assert second.isfinite().all()
    single = focal_gradient(logits.detach().float(), labels, own.float())
    torch.testing.assert_close(single.double(), gradients, rtol=1e-4, atol=1e-7)
    # By hand: at p = 1/2 and gamma = 1 the factor is 1/2 + 1/2 log 2 = 0.8466.
    logits, labels = torch.zeros(1, 2).double(), torch.zeros(1, dtype=torch.int64)
    assert focal_gradient(logits, labels, torch.zeros(1)).tolist() == [[-0.5, 0.5]]
    assert focal_gradient(logits, labels, torch.ones(1))[0, 1] == pytest.approx(0.8465736 / 2)


class Inside(nn.Module):
    """A network whose last layer has the given name."""

    def __init__(self, name: str, last: nn.Module) -> None:
        super().__init__()
        setattr(self, name, last)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
        self.last_name = name

    def forward(self, x):
        return getattr(self, self.last_name)(self.body(x))


@pytest.mark.parametrize("name", ["head", "fc", "classifier"])
def test_the_head_is_found_by_its_name_and_inside_a_wrapper(name):
    network = Inside(name, nn.Linear(4, 2))
    assert find_head(network) is getattr(network, name)
    wrapped = nn.DataParallel(network)
    assert find_head(wrapped) is getattr(network, name)
    assert find_inner(wrapped) is network.body[0]
    # Without such a name, it is the last linear layer.
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1))
    assert find_head(layers) is layers[2]
    assert find_head(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())) is None
    assert find_head(nn.Identity()) is None


def test_logits_that_are_not_the_output_of_the_head_raise(as_a_user_runs_it):
    scaled = nn.Sequential(nn.Linear(4, 3), nn.Softplus())
    with pytest.raises(ValueError, match="must be the output of the last linear layer"):
        forward_with_features(scaled, torch.randn(2, 4))
    unused = Inside("other", nn.Identity())
    unused.head = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="was not called: name the layer"):
        forward_with_features(unused, torch.randn(2, 4))
    with pytest.raises(ValueError, match=r"no layer 'boddy'; it has \['head', 'body'"):
        find_inner(Inside("head", nn.Linear(4, 2)), "boddy")


def test_features_of_tokens_have_channels_first():
    class Tagger(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = Tagger(4, 3)

        def forward(self, x):
            return self.head(x).movedim(-1, 1)

    model, inputs = Tokens(), torch.randn(2, 7, 4)
    forward = forward_with_features(model, inputs, inner=model.head)
    assert forward.features.shape == (2, 4, 7)
    torch.testing.assert_close(forward.inner, model.head(inputs).movedim(-1, 1).detach())
    assert forward.logits.shape == (2, 3, 7)
