"""What a gamma network is fed: the features, or what should do worse if they matter."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from calibrant.checks import promote_dtype
from calibrant.methods.heads import Seen

Inputs = Literal["features", "noise", "random_features", "intermediate"]
INPUTS = ("features", "noise", "random_features", "intermediate")
# Width of a random projection and of noise.
WIDTH = 64


def fed(kind: str, seen: Seen, inputs: Tensor, *, seed: int) -> Tensor:
    """What is fed for every example, (n, w) or, where pixels are examples, (n, w, ...).

    Args:
        kind: "features" is what the head sees. "random_features" is a fixed random layer of the
            inputs (of each pixel where pixels are examples). "intermediate" is what an inner
            layer gave: its mean over places, or where pixels are examples, that at the place.
        seen: what the network saw.
        inputs: of the network.
        seed: of what is random.
    """
    if kind == "features":
        return promote_dtype(seen.features)
    like = promote_dtype(seen.logits.detach())
    places = like.shape[2:]
    if seen.inner is not None:
        inner = promote_dtype(seen.inner)
        if not places:
            return inner.flatten(2).mean(2) if inner.ndim > 2 else inner
        if inner.ndim != like.ndim:
            raise ValueError(
                f"an intermediate layer of pixels must give (n, c, ...) with {like.ndim} axes, "
                f"got {tuple(inner.shape)}: name another layer"
            )
        # No mean over places: pixels that do not count would be in it.
        return functional.interpolate(inner, size=places)
    if not inputs.is_floating_point():
        raise ValueError(
            f"random_features are of images or vectors, the inputs are {inputs.dtype}: use noise"
        )
    rows = inputs if places else inputs.flatten(1)
    if rows.shape[2:] != places:
        raise ValueError(
            f"random_features of pixels need inputs as large as the logits {tuple(places)}, "
            f"got {tuple(rows.shape[2:])}"
        )
    layer = _normal(rows.shape[1], seed).to(like)
    return torch.relu(torch.einsum("nc...,cw->nw...", rows.to(like.dtype), layer))


def _normal(rows: int, seed: int) -> Tensor:
    """Weights of a random layer that keeps the size of what it is fed."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    scaled: Tensor = drawn * (2 / rows) ** 0.5
    return scaled


def noise(tags: Tensor, *, seed: int) -> Tensor:
    """A vector for each example that says nothing about it and never changes, (m, w).

    Uniform numbers of variance 1, fractions of a wild sine of the example's number and place: so
    there is no state to keep, and many processes give what one gives.
    """
    generator = torch.Generator().manual_seed(seed)
    waves = torch.randn(2, WIDTH, generator=generator, dtype=torch.float64).to(tags)
    wild: Tensor = torch.sin((tags + 1) @ waves) * 43758.5453
    return (wild - wild.floor() - 0.5) * 12**0.5
