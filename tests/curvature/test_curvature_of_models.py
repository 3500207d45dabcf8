"""Models and data of users: mappings, loaders, special layers; and no side effects."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dense_curvature import (
    IGNORED,
    drawn,
    hessian,
    image_network,
    mlp,
    perturbed,
    pixels,
    text_network,
    tokens,
    unchanged,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.curvature import problem
from calibrant.curvature.products import gradient, operator
from calibrant.curvature.sharpness import batch_sharpness, sam_sharpness
from calibrant.curvature.spectrum import spectral_density, top_eigenvalues
from calibrant.curvature.trace import trace
from calibrant.losses import cross_entropy

MEASURES = {
    "top_eigenvalues": top_eigenvalues,
    "trace": partial(trace, products=6),
    "spectral_density": partial(spectral_density, steps=3, draws=2),
    "batch_sharpness": partial(batch_sharpness, batches=2),
    "sam_sharpness": sam_sharpness,
    "gradient": gradient,
}


class Cube(torch.autograd.Function):
    """Twice differentiable in reverse mode, without forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x**2


class Cubes(nn.Module):
    def __init__(self, own: bool) -> None:
        super().__init__()
        self.first, self.head, self.own = nn.Linear(4, 3), nn.Linear(3, 3), own

    def forward(self, x):
        out = self.first(x)
        return self.head(Cube.apply(out) if self.own else out**3)


class Attention(nn.Module):
    """One head over three tokens of the input, by torch's fused function or written out."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.mix, self.head, self.fused = nn.Linear(2, 6), nn.Linear(2, 3), fused

    def forward(self, x):
        query, key, value = self.mix(x.view(-1, 1, 3, 2)).chunk(3, -1)
        if self.fused:
            out = nn.functional.scaled_dot_product_attention(query, key, value)
        else:
            out = torch.softmax(query @ key.transpose(-1, -2) / 2**0.5, -1) @ value
        return self.head(out.mean((1, 2)))


class Named(nn.Module):
    """Called with keywords and returning an object, like Hugging Face models."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.unused = inner, nn.Linear(1, 1).double()

    def forward(self, ids, mask):
        return SimpleNamespace(logits=self.inner(ids * mask), loss=None)


def agree(one, other) -> bool:
    vector = torch.randn(one.size, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    found, expected = one.product(vector), other.product(vector)
    return bool(expected.abs().max() > 1e-3) and torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("matrix", ["hessian", "gauss_newton"])
@pytest.mark.parametrize(("make", "shape"), [(Cubes, (4,)), (Attention, (6,))])
def test_no_forward_mode_is_needed_and_fused_attention_is_supported(make, shape, matrix):
    special, plain = perturbed(make(True)), perturbed(make(False))
    special.load_state_dict(plain.state_dict())
    pair = drawn(shape)
    if make is Cubes:
        with pytest.raises(RuntimeError, match="jvp"):
            torch.func.jvp(special, (pair[0],), (pair[0],))
    found = operator(special, cross_entropy, pair, matrix=matrix)
    assert agree(found, operator(plain, cross_entropy, pair, matrix=matrix))


def test_inputs_may_be_a_mapping_and_unused_weights_have_no_curvature():
    model, (ids, labels) = text_network(), tokens()
    inputs = {"ids": ids, "mask": torch.ones_like(ids)}
    found = operator(Named(model), cross_entropy, [(inputs, labels)])
    expected = hessian(model, (ids, labels))
    vector = torch.ones(found.size, dtype=torch.float64)
    product = found.product(vector)
    assert torch.allclose(product[:-2], expected @ vector[:-2], atol=1e-12)
    assert product[-2:].tolist() == [0, 0]


def confirmed(model: nn.Module, data) -> bool:
    """Whether a product equals the finite difference of the gradient along a vector."""
    curvature = operator(model, cross_entropy, data)
    vector = torch.randn(curvature.size, dtype=torch.float64)
    product, gradients, step = curvature.product(vector), [], 1e-5
    sizes = [each.numel() for each in model.parameters()]
    for sign in (1, -2):
        with torch.no_grad():
            for each, part in zip(model.parameters(), vector.split(sizes), strict=True):
                each += sign * step * part.view(each.shape)
        gradients.append(gradient(model, cross_entropy, data))
    change = (gradients[0] - gradients[1]) / (2 * step)
    return torch.allclose(product, change, atol=1e-6 * float(change.abs().max()))


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    assert operator(model, cross_entropy, drawn((3,))).size == 15
    assert confirmed(model, drawn((3,)))


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_measures_do_not_change_the_model_or_the_random_state(measure):
    class Counting(nn.Sequential):
        """Writes to a buffer in every mode."""

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = Counting(image_network(), nn.Dropout(0.5), nn.BatchNorm1d(3).double())
    model.register_buffer("calls", torch.zeros(()))
    loader = DataLoader(TensorDataset(*drawn((1, 5, 5), n=5)), batch_size=2, shuffle=True)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    with unchanged(model):
        measure(model, cross_entropy, loader)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_a_failing_loss_does_not_change_the_model():
    model, pair = image_network().train(), drawn((1, 5, 5))
    calls = []

    def failing(logits, labels):
        calls.append(model.training)
        if len(calls) > 8:
            raise KeyError("mine")
        return cross_entropy(logits, labels)

    curvature = operator(model, failing, pair, keep=0)
    calls.extend([False] * 8)
    with pytest.raises(KeyError, match="mine"):
        curvature.product(torch.ones(curvature.size).double())
    assert not any(calls)
    assert all(each.training for each in model.modules())
    assert not any("forward" in each.__dict__ for each in model.modules())


def test_loaders_that_shuffle_or_add_noise_repeat_their_batches_in_every_product():
    model, pair = mlp(), drawn((4,))
    loader = DataLoader(TensorDataset(*pair), batch_size=2, shuffle=True)
    shuffled = operator(model, cross_entropy, loader, keep=0)
    assert agree(shuffled, operator(model, cross_entropy, pair))

    class Noisy(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.randn_like(x), y

    loader = DataLoader(Noisy(*drawn((4,))), batch_size=2)
    curvature = operator(mlp(), cross_entropy, loader, keep=0)
    vector = torch.ones(curvature.size).double()
    assert torch.allclose(curvature.product(vector), curvature.product(vector), atol=1e-12)


def test_batch_norm_without_running_statistics_gets_its_whole_batch(monkeypatch):
    monkeypatch.setattr(problem, "CHUNK_BYTES", 1)
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    model, pair = perturbed(nn.Sequential(nn.Linear(4, 3), norm, nn.Linear(3, 3))), drawn((4,))
    cross_entropy(model(pair[0]), pair[1]).mean().backward()
    expected = torch.cat([each.grad.reshape(-1) for each in model.parameters()])
    assert torch.allclose(gradient(model, cross_entropy, pair), expected)
    # Not against torch.func.hessian: its forward mode is wrong for this layer.
    assert confirmed(model, pair)


def test_the_curvature_of_a_hugging_face_bert_agrees_with_its_gradients():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 11, "hidden_size": 4, "intermediate_size": 5, "num_labels": 3}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 6}
    config = transformers.BertConfig(**sizes)
    model = perturbed(transformers.BertForSequenceClassification(config))
    ids, labels = tokens(vocabulary=11)
    # The embedding of the padding has no gradient by definition, so it must not occur.
    inputs = {"input_ids": ids.clamp(min=1), "attention_mask": (ids > 0).long()}
    data = [(inputs, labels)]
    assert confirmed(model, data)
    values = top_eigenvalues(model, cross_entropy, data, matrix="gauss_newton")
    assert float(values) > 0


WRONG_DATA = {
    "iterator": (lambda x, y: iter([(x, y)]), "only once: pass list"),
    "generator": (lambda x, y: (each for each in [(x, y)]), "only once: pass list"),
    "empty list": (lambda x, y: [], "no examples"),
    "empty batch": (lambda x, y: (x[:0], y[:0]), "no examples"),
    "number": (lambda x, y: 3, "got int"),
    "tensor": (lambda x, y: x, "got Tensor"),
    "triple": (lambda x, y: [(x, y, y)], "got 3 of Tensor, Tensor, Tensor"),
    "mapping": (lambda x, y: [{"x": x, "labels": y}], "got dict"),
    "arrays": (lambda x, y: (x.numpy(), y.numpy()), "pair .* got ndarray"),
    "lengths": (lambda x, y: (x, y[:3]), "7 inputs and 3 labels"),
    "columns": (lambda x, y: (x, y[:, None]), r"\(4, 3\) and \(4, 1\)"),
    "all ignored": (lambda x, y: (x, torch.full_like(y, IGNORED)), "labels are ignore_index, 9"),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("case", WRONG_DATA)
def test_invalid_data_raise_in_one_line(case):
    make, message = WRONG_DATA[case]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        top_eigenvalues(mlp(), cross_entropy, make(*drawn((4,))), ignore_index=IGNORED)
    assert "\n" not in str(error.value)


WRONG_ARGUMENTS = {
    "no parameter 'hea'; expected one of .*layers.0.weight": {"parameters": ["hea"]},
    "no parameter is chosen": {"model": nn.Identity()},
    "must be one of .'hessian', 'gauss_newton'.": {"matrix": "fisher"},
    r"for 4 examples got \(4, 3\)": {"loss": lambda z, y: z},
    "must return logits": {"model": nn.LSTM(4, 3).double()},
    "product with the hessian matrix is not finite": {
        "loss": lambda z, y: (z - z).abs().sqrt().sum(1)
    },
}


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_invalid_models_losses_and_options_raise_in_one_line():
    model, (x, y) = mlp(), drawn((4,))
    errors = (ValueError, TypeError, FloatingPointError)
    for message, change in WRONG_ARGUMENTS.items():
        arguments = {"model": model, "loss": cross_entropy, "data": (x, y)} | change
        with pytest.raises(errors, match=message) as error:
            top_eigenvalues(**arguments)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="vector must be"):
        operator(model, cross_entropy, (x, y)).product(x[0])
    with pytest.raises(ValueError, match="cannot be concatenated"):
        batch_sharpness(model, cross_entropy, [(x, y), (x[:, :2], y)])
    with pytest.raises(FloatingPointError, match="gradient is not finite"):
        gradient(model, cross_entropy, (x / 0, y))


def test_ignored_pixels_change_nothing():
    model, (x, y) = nn.Conv2d(1, 3, 1).double(), pixels()
    other = x.where((y != IGNORED)[:, None], 100.0)
    one = operator(model, cross_entropy, (x, y), ignore_index=IGNORED)
    assert agree(one, operator(model, cross_entropy, (other, y), ignore_index=IGNORED))
