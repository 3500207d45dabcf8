"""Distribution shifts of images with five severities: noise, blur, contrast, brightness."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv1d, pad

from calibrant.data.splits import Split
from calibrant.setting_errors import did_you_mean

Images = Float[Tensor, "n c h w"]
# Images per chunk.
CHUNK = 1024


def noise(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add normal noise; `strength` is its standard deviation as a fraction of the value range."""
    return images + strength * torch.randn(images.shape, generator=generator)


def blur(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Gaussian blur; `strength` is its standard deviation as a fraction of the longer side."""
    width = strength * max(images.shape[2:])
    reach = max(1, round(3 * width))
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / width) ** 2)
    kernel = (kernel / kernel.sum())[None, None]
    for _ in range(2):
        # Separable: blur along the last axis, then transpose.
        padded = pad(images.flatten(0, 2)[:, None], (reach, reach), mode="replicate")
        images = conv1d(padded, kernel)[:, 0].view(images.shape).transpose(2, 3)
    return images


def contrast(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Reduce contrast: move every pixel towards the mean of its image by a fraction."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + (1 - strength) * (images - mean)


def brightness(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add a constant, as a fraction of the value range."""
    return images + strength


KINDS = {
    noise: (0.02, 0.04, 0.08, 0.12, 0.18),
    blur: (0.03, 0.04, 0.055, 0.075, 0.1),
    contrast: (0.25, 0.45, 0.6, 0.72, 0.82),
    brightness: (0.08, 0.16, 0.24, 0.32, 0.4),
}
# "blur 3" is blur of severity 3 of 5.
SHIFTS: dict[str, Callable[..., Images]] = {
    f"{change.__name__} {severity}": partial(change, strength=strength)
    for change, strengths in KINDS.items()
    for severity, strength in enumerate(strengths, 1)
}


def shifted(split: Split, name: str) -> Split:
    """A split of images with one of `SHIFTS` applied; deterministic.

    Examples:
        >>> from calibrant.data import load
        >>> test = load("digits", 0).test
        >>> shifted(test, "noise 3").inputs.shape == test.inputs.shape
        True
    """
    if name not in SHIFTS:
        raise ValueError(f"no shift {name!r}; {did_you_mean(name, SHIFTS)}")
    if split.inputs.ndim != 4 or split.inputs.dtype != torch.uint8:
        raise ValueError(
            f"a shift needs uint8 images (n, c, h, w), got {tuple(split.inputs.shape)}"
        )
    generator = torch.Generator().manual_seed(list(SHIFTS).index(name))
    parts = [
        (255 * SHIFTS[name](images.float() / 255, generator=generator)).round().clamp(0, 255).byte()
        for images in torch.split(split.inputs, CHUNK)
    ]
    return replace(split, inputs=torch.cat(parts))
