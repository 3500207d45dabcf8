"""Small networks in float64, and their dense second derivatives by torch.func."""

import copy
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.func import hessian as second_derivative

from calibrant import models
from calibrant.losses import cross_entropy
from calibrant.model_modes import evaluating

IGNORED = 9


def perturbed(model: nn.Module, seed: int = 0) -> nn.Module:
    """Perturb weights and running statistics, in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double()
    for each in model.parameters():
        each.data += 0.2 * torch.randn(each.shape, generator=generator).double()
    for each in model.buffers():
        if each.is_floating_point():
            each += 0.3 * torch.rand(each.shape, generator=generator).double()
    return model


def mlp(seed: int = 0) -> nn.Module:
    return perturbed(models.build("mlp", classes=3, shape=(4,), hidden=(3,), seed=seed))


def drawn(shape: tuple[int, ...], *, n: int = 7, classes: int = 3, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, *shape, generator=generator).double()
    return inputs, torch.randint(classes, (n,), generator=generator)


def tokens(*, n: int = 6, length: int = 5, vocabulary: int = 6):
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randint(vocabulary, (n, length), generator=generator)
    inputs[:, 3:] *= torch.arange(n)[:, None] % 2
    return inputs, torch.arange(n) % 3


def pixels(*, n: int = 3, size: int = 4):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(n, 1, size, size, generator=generator).double()
    labels = torch.randint(3, (n, size, size), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
    return inputs, labels


def image_network() -> nn.Module:
    return perturbed(models.build("resnet8", classes=3, shape=(1, 5, 5), width=0.07))


def mask_network() -> nn.Module:
    return perturbed(models.build("unet", classes=3, shape=(1, 4, 4), levels=1, width=0.07))


def text_network(name: str = "text_cnn", **settings) -> nn.Module:
    settings = settings or {"dimension": 2, "channels": 2, "kernels": (3, 3), "hidden": 2}
    return perturbed(models.build(name, classes=3, shape=(5,), vocabulary=6, **settings))


def convolutional() -> nn.Sequential:
    """A network for inputs (2, 4, 4) that behaves differently in evaluation mode."""
    head = nn.Sequential(nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(3 * 4, 3))
    return perturbed(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), *head))


@contextmanager
def unchanged(network: nn.Module):
    """Assert that weights, buffers, gradients, modes and the random state stay the same."""
    first, *_, last = network.parameters()
    network.train()
    next(m for m in network.modules() if isinstance(m, nn.BatchNorm2d)).eval()
    first.requires_grad_(False)
    last.grad = torch.ones_like(last)
    before = copy.deepcopy(network.state_dict())
    modes = [each.training for each in network.modules()]
    state = torch.get_rng_state()
    yield
    assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())
    assert [each.training for each in network.modules()] == modes
    assert not any("forward" in each.__dict__ for each in network.modules())
    for each in network.parameters():
        assert (each.grad is not None) == (each is last)
        assert each.requires_grad == (each is not first)
    assert (last.grad == 1).all()
    assert torch.equal(torch.get_rng_state(), state)


CASES = {
    "mlp": (mlp, lambda: drawn((4,))),
    "image": (image_network, lambda: drawn((1, 5, 5), n=5)),
    "mask": (mask_network, pixels),
    "text": (text_network, tokens),
    "bag": (lambda: text_network("bag_of_embeddings", dimension=2, hidden=2), tokens),
}


def flat_weights(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def logits_of(model: nn.Module, inputs, labels):
    """Logits (m, k) of valid labels as a function of the flat weights; and these labels."""
    named = dict(model.named_parameters())
    sizes = [each.numel() for each in named.values()]

    def logits(vector: Tensor) -> Tensor:
        parts = zip(named.items(), vector.split(sizes), strict=True)
        with evaluating(model):
            out = functional_call(model, {n: v.view(w.shape) for (n, w), v in parts}, (inputs,))
        if out.ndim > 2:
            out = out.movedim(1, -1).reshape(-1, out.shape[1])[labels.reshape(-1) != IGNORED]
        return out

    return logits, labels[labels != IGNORED]


def hessian(model: nn.Module, data, loss=cross_entropy) -> Tensor:
    logits, labels = logits_of(model, *data)
    return second_derivative(lambda v: loss(logits(v), labels).mean())(flat_weights(model))


def gauss_newton(model: nn.Module, data, loss=cross_entropy) -> Tensor:
    logits, labels = logits_of(model, *data)
    here = flat_weights(model)
    jacobian = jacrev(logits)(here).flatten(0, 1)
    ends = logits(here).detach()
    inner = second_derivative(lambda z: loss(z, labels).mean())(ends)
    return jacobian.T @ inner.reshape(2 * [ends.numel()]) @ jacobian


DENSE = {"hessian": hessian, "gauss_newton": gauss_newton}
