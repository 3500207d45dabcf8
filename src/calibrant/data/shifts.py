"""Images that differ from those of training, more and more: noise, blur, contrast, light."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv1d, pad

from calibrant.data.splits import Split

Images = Float[Tensor, "n c h w"]
# Images that are changed together.
CHUNK = 1024


def noise(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add normal noise of a standard deviation, in parts of the range of values."""
    return images + strength * torch.randn(images.shape, generator=generator)


def blur(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Blur by a normal kernel whose width is a part of the longer side; edges are repeated."""
    width = strength * max(images.shape[2:])
    reach = max(1, round(3 * width))
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / width) ** 2)
    kernel = (kernel / kernel.sum())[None, None]
    for _ in range(2):
        # Once along each side: the last one is blurred, then the two change places.
        rows = pad(images.flatten(0, 2)[:, None], (reach, reach), mode="replicate")
        images = conv1d(rows, kernel)[:, 0].view(images.shape).transpose(2, 3)
    return images


def contrast(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Bring every pixel nearer to the mean of its image, by a part of the way."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + (1 - strength) * (images - mean)


def brightness(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add light, in parts of the range of values."""
    return images + strength


KINDS = {
    noise: (0.02, 0.04, 0.08, 0.12, 0.18),
    blur: (0.03, 0.04, 0.055, 0.075, 0.1),
    contrast: (0.25, 0.45, 0.6, 0.72, 0.82),
    brightness: (0.08, 0.16, 0.24, 0.32, 0.4),
}
# "blur 3" is the third strength of five.
SHIFTS: dict[str, Callable[..., Images]] = {
    f"{change.__name__} {severity}": partial(change, strength=strength)
    for change, strengths in KINDS.items()
    for severity, strength in enumerate(strengths, 1)
}


def shifted(split: Split, name: str) -> Split:
    """A split of images after one of `SHIFTS`: the same examples, the same bytes each time.

    Examples:
        >>> from calibrant.data import load
        >>> test = load("digits", 0).test
        >>> shifted(test, "noise 3").inputs.shape == test.inputs.shape
        True
    """
    if name not in SHIFTS:
        raise ValueError(f"no shift {name!r}; expected one of {', '.join(SHIFTS)}")
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
