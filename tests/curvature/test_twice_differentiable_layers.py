"""Layers that are replaced while curvature is measured have the derivatives of torch's own."""

import pytest
import torch
from torch import nn
from torch.autograd import grad

from calibrant.curvature.layers import twice_differentiable

LAYERS = {
    "plain": (lambda: nn.Conv2d(2, 4, 3), (2, 5, 5)),
    "stride and padding": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 6, 5)),
    "groups, dilation": (lambda: nn.Conv2d(2, 4, 2, groups=2, dilation=2, bias=False), (2, 5, 5)),
    "one axis": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 6)),
    "three axes": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "padded by name": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 4, 4)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    "norm": (lambda: nn.BatchNorm2d(2), (2, 3, 3)),
    "norm of vectors, no weights": (lambda: nn.BatchNorm1d(3, affine=False), (3,)),
}


def derivatives(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Value, gradients, and gradients of their product with fixed vectors."""
    inputs = [x, *layer.parameters()]
    out = layer(x)
    generator = torch.Generator().manual_seed(1)
    gradients = grad(out.square().sum(), inputs, create_graph=True)
    vectors = [torch.randn(each.shape, generator=generator).double() for each in gradients]
    return [out, *gradients, *grad(gradients, inputs, vectors)]


@pytest.mark.parametrize("case", LAYERS)
def test_values_and_both_derivatives_are_those_of_torch(case):
    make, shape = LAYERS[case]
    layer = make().double().eval()
    for each in layer.buffers():
        each += torch.rand(each.shape).to(each.dtype)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    expected = derivatives(layer, x)
    with twice_differentiable(layer, twice=True):
        found = derivatives(layer, x)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    assert "forward" not in layer.__dict__


@pytest.mark.parametrize("twice", [True, False])
def test_a_vector_jacobian_product_is_differentiable_in_its_vector(twice):
    layer = nn.Conv2d(2, 4, 3, padding=1).double()
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    with twice_differentiable(layer, twice=twice):
        out = layer(x)
    given = torch.zeros_like(out).requires_grad_()
    pulled = grad(out, [x, *layer.parameters()], given, create_graph=True)
    along = [torch.randn_like(each) for each in pulled]
    (found,) = grad(pulled, given, along)
    forward = torch.func.jvp(
        lambda x, w, b: nn.functional.conv2d(x, w, b, padding=1),
        (x, *layer.parameters()),
        tuple(along),
    )[1]
    assert torch.allclose(found, forward, atol=1e-12)
    # An image without a batch axis.
    expected = layer(x[0])
    with twice_differentiable(layer, twice=twice):
        assert torch.allclose(layer(x[0]), expected)


def test_a_forward_that_other_code_has_replaced_is_kept():
    class Doubled(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    own, patched = Doubled(1, 1, 1), nn.Conv2d(1, 1, 1)
    patched.forward = lambda x: x + 1
    x = torch.ones(1, 1, 2, 2)
    before = own(x), patched(x)
    with twice_differentiable(nn.ModuleList([own, patched]), twice=True):
        torch.testing.assert_close(own(x), before[0])
        assert torch.equal(patched(x), before[1])
    assert torch.equal(patched(x), before[1])
