"""Norms of Jacobians, compared with naive ones, and without side effects."""

import copy

import pytest
import torch
from dense_curvature import convolutional, unchanged
from torch import nn
from torch.testing import assert_close

from calibrant.curvature import jacobians
from calibrant.curvature.jacobians import jacobian_norms


def naive_norms(network, inputs):
    """Singular values of one gradient per class of each example."""
    network = copy.deepcopy(network).eval()
    weights = [each for each in network.parameters() if each.requires_grad]
    norms = []
    for one in inputs:
        jacobian = []
        for logit in network(one[None])[0]:
            gradients = torch.autograd.grad(
                logit, weights, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            jacobian.append(torch.cat([each.flatten() for each in gradients]))
        norms.append(torch.linalg.svdvals(torch.stack(jacobian))[0])
    return torch.stack(norms).double()


class TestJacobianNorms:
    @pytest.mark.parametrize("chunk", [None, 1, 3, 100])
    def test_are_the_largest_singular_values(self, chunk):
        network, x = convolutional(), torch.randn(7, 2, 4, 4, dtype=torch.float64)
        found = jacobian_norms(network, x, chunk=chunk)
        assert_close(found, naive_norms(network, x), rtol=1e-9, atol=0)

    def test_of_float32_networks_text_and_zeros(self):
        network, x = convolutional().float(), torch.randn(7, 2, 4, 4)
        found = jacobian_norms(network, x.double().numpy())
        assert found.dtype == torch.float64
        assert_close(found, naive_norms(network, x), rtol=1e-4, atol=0)
        text = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)).double()
        tokens = torch.randint(9, (5, 3))
        assert_close(jacobian_norms(text, tokens), naive_norms(text, tokens))
        network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
        assert jacobian_norms(network, torch.zeros(3, 2)).tolist() == [0, 0, 0]

    def test_of_a_linear_network_are_the_norms_of_its_inputs(self):
        x = torch.randn(9, 5)
        found = jacobian_norms(nn.Linear(5, 3), x)
        assert_close(found, (x.double().pow(2).sum(1) + 1).sqrt(), rtol=1e-6, atol=0)
        assert_close(jacobian_norms(nn.Linear(5, 3, bias=False), x), x.double().norm(dim=1))

    def test_use_trainable_weights_and_shared_ones_once(self):
        network, x = convolutional(), torch.randn(3, 2, 4, 4, dtype=torch.float64)
        every = jacobian_norms(network, x)
        network[0].requires_grad_(False)
        some = jacobian_norms(network, x)
        assert_close(some, naive_norms(network, x))
        assert (some < every).all()

        shared = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
        shared[2].weight = shared[0].weight
        x = torch.randn(4, 3, dtype=torch.float64)
        assert_close(jacobian_norms(shared, x), naive_norms(shared, x))

    def test_limit_the_jacobians_in_memory(self, monkeypatch):
        network, x = convolutional(), torch.randn(8, 2, 4, 4, dtype=torch.float64)
        whole, sizes = jacobian_norms(network, x), []
        size = 3 * sum(each.numel() for each in network.parameters())
        monkeypatch.setattr(jacobians, "ELEMENTS", 3 * size)
        monkeypatch.setattr(jacobians, "LAYERS", 0)
        real = jacobians.vmap

        def spy(function):
            return lambda part: sizes.append(len(part)) or real(function)(part)

        monkeypatch.setattr(jacobians, "vmap", spy)
        assert_close(jacobian_norms(network, x), whole)
        assert sizes == [3, 3, 2]
        sizes.clear()
        monkeypatch.setattr(jacobians, "LAYERS", 3 * size)
        assert_close(jacobian_norms(network, x), whole)
        assert sizes == []

    def test_with_a_chunk_of_one_support_control_flow(self):
        class Branches(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.other = nn.Linear(2, 3), nn.Linear(2, 3, bias=False)

            def forward(self, x):
                return self.one(x) if float(x.sum()) > 0 else self.other(x)

        found = jacobian_norms(Branches(), [[2.0, 2.0], [-3.0, -4.0]], chunk=1)
        assert_close(found, torch.tensor([3.0, 5.0], dtype=torch.float64))


def test_the_network_is_not_changed():
    network, x = convolutional(), torch.randn(5, 2, 4, 4, dtype=torch.float64)
    with unchanged(network), torch.no_grad():
        found = jacobian_norms(network, x)
    assert_close(found, jacobian_norms(network, x), rtol=1e-12, atol=0)
    assert (found > 0).all()


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("network", "inputs", "options", "words"),
    [
        (nn.Linear(2, 3), torch.ones(0, 2), {}, "need at least 1 example"),
        (nn.Linear(2, 3), torch.ones(4, 2), {"chunk": 0}, "chunk must be at least 1, got 0"),
        (nn.Flatten(), torch.ones(4, 2), {}, "no weight .* requires a gradient"),
        (nn.Linear(2, 3), torch.ones(4, 1, 2), {}, r"must return \(1, k\) logits"),
        (nn.Linear(2, 3), torch.full((4, 2), torch.nan), {}, "not finite"),
    ],
)
def test_invalid_arguments_raise_in_one_line(network, inputs, options, words):
    with pytest.raises((ValueError, FloatingPointError), match=words) as error:
        jacobian_norms(network, inputs, **options)
    assert "\n" not in str(error.value)
