"""Distribution shifts: correct, stronger with severity, and deterministic."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d

from calibrant.data import Split, shifted
from calibrant.data.shifts import CHUNK, KINDS, blur


def split_of(images):
    n = len(images)
    return Split(torch.as_tensor(images), torch.zeros(n, dtype=torch.int64), torch.arange(n))


@pytest.fixture(scope="module")
def photographs():
    generator = np.random.default_rng(0)
    smooth = gaussian_filter1d(gaussian_filter1d(generator.normal(size=(40, 3, 20, 24)), 2), 2, 2)
    return split_of((127 + 300 * smooth).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("kind", [change.__name__ for change in KINDS])
def test_shifts_are_deterministic_and_stronger_with_severity(photographs, kind):
    before, distances = photographs.inputs.float(), []
    for severity in range(1, 6):
        first, again = (shifted(photographs, f"{kind} {severity}") for _ in range(2))
        assert first.inputs.dtype == torch.uint8
        assert first.inputs.shape == before.shape
        assert torch.equal(first.inputs, again.inputs)
        assert torch.equal(first.labels, photographs.labels)
        distances.append(float((first.inputs.float() - before).square().mean()))
    assert distances[0] > 0
    assert distances == sorted(distances)


def test_blur_is_a_normal_filter_along_both_sides_with_edges_repeated(photographs):
    width = KINDS[blur][4] * 24
    images, reach = photographs.inputs.numpy() / 255, round(3 * width)
    expected = images
    for axis in (2, 3):
        expected = gaussian_filter1d(
            expected, width, axis=axis, mode="nearest", truncate=reach / width
        )
    found = shifted(photographs, "blur 5").inputs.numpy() / 255
    assert np.abs(found - expected).max() < 1 / 255


def test_contrast_keeps_the_mean_and_brightness_is_clipped_at_white(photographs):
    before = photographs.inputs.float()
    after = shifted(photographs, "contrast 3").inputs.float()
    assert torch.allclose(after.mean((1, 2, 3)), before.mean((1, 2, 3)), atol=0.3)
    ratio = after.std((1, 2, 3)) / before.std((1, 2, 3))
    assert torch.allclose(ratio, torch.full_like(ratio, 0.4), atol=0.02)
    image = np.full((1, 1, 2, 2), [[0, 100], [200, 255]], np.uint8)
    found = shifted(split_of(image), "brightness 5")
    assert found.inputs.flatten().tolist() == [102, 202, 255, 255]


def test_every_image_has_its_own_noise(photographs):
    many = split_of(np.full((CHUNK + 2, 1, 4, 4), 128, np.uint8))
    noise = shifted(many, "noise 3").inputs.float() - 128
    assert float(noise.std()) == pytest.approx(0.08 * 255, rel=0.03)
    assert not torch.equal(noise[0], noise[CHUNK])


def test_unknown_shifts_and_inputs_other_than_images_raise(photographs):
    with pytest.raises(ValueError, match="no shift 'fog 1'; expected one of noise 1, "):
        shifted(photographs, "fog 1")
    vectors = Split(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64), torch.arange(3))
    with pytest.raises(ValueError, match="needs uint8 images"):
        shifted(vectors, "noise 1")
