"""Measures per layer and per class: blocks of the matrix, and parts of the data."""

import pytest
import torch
from dense_curvature import IGNORED, drawn, hessian, mlp, pixels
from torch import nn

from calibrant.curvature.parts import per_class, per_layer
from calibrant.curvature.products import operator
from calibrant.curvature.spectrum import top_eigenvalues
from calibrant.curvature.trace import trace
from calibrant.losses import cross_entropy


def test_layers_are_diagonal_blocks_and_their_traces_add_up():
    model, pair = mlp(), drawn((4,))
    whole = hessian(model, pair)
    found = per_layer(trace, model, cross_entropy, pair)
    assert list(found) == ["layers.0", "head"]
    assert float(found["layers.0"]) == pytest.approx(float(whole[:15, :15].trace()))
    assert sum(map(float, found.values())) == pytest.approx(float(whole.trace()))
    tops = per_layer(top_eigenvalues, model, cross_entropy, pair, k=2)
    expected = torch.linalg.eigvalsh(whole[15:, 15:]).flip(0)[:2]
    assert torch.allclose(tops["head"], expected)


def test_a_model_of_one_layer_has_an_empty_name_and_parameters_select_layers():
    assert list(per_layer(trace, nn.Linear(4, 3).double(), cross_entropy, drawn((4,)))) == [""]
    found = per_layer(trace, mlp(), cross_entropy, drawn((4,)), parameters=["head.bias"])
    whole = hessian(mlp(), drawn((4,)))
    assert float(found["head"]) == pytest.approx(float(whole[-3:, -3:].trace()))


def test_classes_weighted_by_their_examples_add_up():
    model, (x, y) = mlp(), drawn((4,))
    found = per_class(trace, model, cross_entropy, [(x[:3], y[:3]), (x[3:], y[3:])])
    counts = y.bincount()
    assert list(found) == counts.nonzero()[:, 0].tolist()
    total = sum(float(each) * int(counts[label]) for label, each in found.items()) / 7
    assert total == pytest.approx(float(hessian(model, (x, y)).trace()))
    alone = top_eigenvalues(model, cross_entropy, (x[y == 1], y[y == 1]))
    assert torch.allclose(per_class(top_eigenvalues, model, cross_entropy, (x, y))[1], alone)


def test_ignored_pixels_belong_to_no_class():
    model, (x, y) = nn.Conv2d(1, 3, 1).double(), pixels()
    found = per_class(trace, model, cross_entropy, (x, y), ignore_index=IGNORED)
    assert list(found) == [0, 1, 2]
    only = y.where(y == 2, IGNORED)
    expected = operator(model, cross_entropy, (x, only), ignore_index=IGNORED).dense().trace()
    assert float(found[2]) == pytest.approx(float(expected))
    assert len(per_class(trace, model, cross_entropy, (x[:1], only[:1]), ignore_index=IGNORED)) == 1
