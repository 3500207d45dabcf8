"""curvlinops: the same matrices, traces and largest eigenvalues; it takes the mean of a batch."""

import warnings
from functools import partial

import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import nn

from calibrant import models
from calibrant.curvature import operator, top_eigenvalues
from calibrant.losses import cross_entropy, focal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    curvlinops = pytest.importorskip("curvlinops")

THEIRS = {
    "hessian": curvlinops.HessianLinearOperator,
    "gauss_newton": curvlinops.GGNLinearOperator,
}


class Focal(nn.Module):
    """Focal loss as it asks for losses: a module with a reduction."""

    reduction = "mean"

    def forward(self, logits, labels):
        return focal(logits, labels, gamma=2.0).mean()


LOSSES = {
    "cross_entropy": (cross_entropy, nn.CrossEntropyLoss()),
    "focal": (partial(focal, gamma=2.0), Focal()),
}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, 3, 8, 8, generator=generator).double()
    return inputs, torch.randint(4, (20,), generator=generator)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("matrix", THEIRS)
def test_products_and_largest_eigenvalues_are_the_same(matrix, loss):
    model = models.build("resnet8", classes=4, shape=(3, 8, 8), width=0.25).double().eval()
    x, y = data()
    ours, theirs = LOSSES[loss]
    batches = [(x[:8], y[:8]), (x[8:], y[8:])]
    other = THEIRS[matrix](
        model, theirs, [*model.parameters()], batches, check_deterministic=False
    ).to_scipy()
    mine = operator(model, ours, batches, matrix=matrix)
    vector = torch.randn(mine.size, dtype=torch.float64)
    expected = torch.from_numpy(other @ vector.numpy())
    assert torch.allclose(mine.product(vector), expected, atol=1e-10)
    (value,) = eigsh(other, 1, which="LA", tol=1e-8, return_eigenvectors=False)
    found = top_eigenvalues(model, ours, batches, matrix=matrix, tolerance=1e-8)
    assert float(found) == pytest.approx(float(value), rel=1e-6)
