"""Numbers of parameters: from the papers, and by independent formulas."""

from itertools import pairwise

import pytest

from calibrant.models import build


def size(name, *, classes=10, shape=(3, 32, 32), **given):
    network = build(name, classes=classes, shape=shape, **given)
    return sum(p.numel() for p in network.parameters())


def convolved(inputs, outputs, kernel=9):
    """A convolution without bias and the two vectors of its norm."""
    return kernel * inputs * outputs + 2 * outputs


def cifar(depth, classes=10):
    n = (depth - 2) // 6
    total = convolved(3, 16)
    for inputs, channels in ((16, 16), (16, 32), (32, 64)):
        total += convolved(inputs, channels) + (2 * n - 1) * convolved(channels, channels)
    return total + 65 * classes


# Millions of parameters as in Table 6 of the ResNet paper; it has no networks of 8 and 14 layers.
@pytest.mark.parametrize(
    ("depth", "millions"),
    [(8, None), (14, None), (20, 0.27), (32, 0.46), (56, 0.85), (110, 1.7)],
)
def test_cifar_resnets_have_the_parameters_of_the_formula_and_the_paper(depth, millions):
    assert size(f"resnet{depth}") == cifar(depth)
    assert size(f"resnet{depth}", classes=100) == cifar(depth, 100)
    if millions is not None:
        assert round(cifar(depth) / 1e6, 1 if millions > 1 else 2) == millions


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet20", 269_722),
        ("resnet18", 11_173_962),
        ("resnet50", 23_520_842),
        ("densenet40", 1_019_722),
        ("densenet121", 6_956_298),
        ("wide_resnet", 36_479_194),
    ],
)
def test_known_networks_have_their_known_number_of_parameters(name, expected):
    assert size(name) == expected


def test_vgg16_has_fourteen_million_in_its_convolutions():
    sizes = [3, 64, 64, 128, 128, 256, 256, 256, *[512] * 6]
    total = sum(convolved(a, b) for a, b in pairwise(sizes))
    assert total == pytest.approx(14.7e6, rel=0.002)
    assert size("vgg16") == total + 513 * 10


def test_wide_resnet_counts_by_formula_in_other_depths_and_widths():
    channels, total = 16, 9 * 3 * 16
    for outputs in (32, 64, 128):
        for place in range(2):
            total += 2 * channels + 9 * channels * outputs + 2 * outputs + 9 * outputs**2
            total += 0 if place else channels * outputs
            channels = outputs
    assert size("wide_resnet", depth=16, width=2) == total + 2 * 128 + 129 * 10


def test_small_networks_count_as_expected():
    assert size("mlp") == 3073 * 200 + 201 * 200 + 201 * 10
    small = convolved(1, 32) + convolved(32, 64) + convolved(64, 64) + 65 * 10
    assert size("small_cnn", shape=(1, 8, 8)) == small
    text = {"shape": (50,), "vocabulary": 500}
    assert size("bag_of_embeddings", **text, hidden=32) == 500 * 64 + 65 * 32 + 33 * 10
    convolutions = (500 + 1) * 128 + 2 * (640 + 1) * 128
    assert size("text_cnn", **text) == 500 * 100 + convolutions + 129 * 128 + 129 * 10


def test_twice_the_width_is_about_four_times_the_size():
    for name in ("resnet8", "resnet18", "vgg16", "unet", "small_cnn"):
        narrow, wide = size(name, width=0.25), size(name, width=0.5)
        assert 3.2 < wide / narrow < 4
