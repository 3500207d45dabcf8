"""Augmentation: equal to a plain loop, and independent of the other examples of a batch."""

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant.data import Augmentation, Scale, Split
from calibrant.data.augment import COLUMN, FLIP, PARTNER, ROW, SHARE, WORD, uniform

VARIANTS = [
    Augmentation(),
    Augmentation(crop=2),
    Augmentation(flip=True),
    Augmentation(crop=3, flip=True),
    Augmentation(mixup=0.4),
    Augmentation(crop=1, flip=True, mixup=1.0),
]


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(1)
    return Split(
        torch.randint(0, 256, (40, 3, 6, 8), dtype=torch.uint8, generator=generator),
        torch.randint(0, 5, (40,), generator=generator),
        torch.arange(40) * 2,
        Scale((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)),
    )


@pytest.fixture
def scenes(images):
    masks = (images.inputs[:, 0] % 5).short()
    return Split(images.inputs, masks, images.rows, images.scale)


def one_number(seed, epoch, draw, position):
    return float(uniform(seed, epoch, draw, np.array([position]))[0])


def moved(augmentation, split, position, seed, epoch, ignore_index=None):
    """One image and its label, pixel by pixel."""
    image, label = split.inputs[position], split.labels[position]
    pad, (height, width) = augmentation.crop, image.shape[1:]
    down = right = 0
    if pad:
        down = int(one_number(seed, epoch, ROW, position) * (2 * pad + 1)) - pad
        right = int(one_number(seed, epoch, COLUMN, position) * (2 * pad + 1)) - pad
    mirrored = augmentation.flip and one_number(seed, epoch, FLIP, position) < 0.5
    result = torch.zeros_like(image)
    mask = torch.full_like(label, ignore_index or 0) if label.ndim else label
    for y in range(height):
        for x in range(width):
            from_y = y + down
            from_x = (width - 1 - x if mirrored else x) + right
            if 0 <= from_y < height and 0 <= from_x < width:
                result[:, y, x] = image[:, from_y, from_x]
                if label.ndim:
                    mask[y, x] = label[from_y, from_x]
    return split.scale(result[None])[0], mask.long()


@pytest.mark.parametrize("augmentation", VARIANTS, ids=str)
def test_augmentation_equals_a_loop_over_the_images_of_the_batch(augmentation, images):
    index, before = torch.tensor([7, 0, 39, 7, 12]), images.inputs.clone()
    batch = augmentation(images, index, seed=5, epoch=2)
    for i, position in enumerate(index.tolist()):
        expected, label = moved(augmentation, images, position, 5, 2)
        if augmentation.mixup:
            other = int(one_number(5, 2, PARTNER, position) * len(images))
            share = stats.beta(augmentation.mixup, augmentation.mixup).ppf(
                one_number(5, 2, SHARE, position)
            )
            partner, other_label = moved(augmentation, images, other, 5, 2)
            expected = share * expected + (1 - share) * partner
            assert float(batch.share[i]) == pytest.approx(share, abs=1e-6)
            assert batch.other_labels[i] == other_label
        torch.testing.assert_close(batch.inputs[i], expected.float(), atol=2e-6, rtol=1e-5)
        assert batch.labels[i] == label
    assert torch.equal(batch.index, index)
    assert (batch.share is None) == (batch.other_labels is None) == (not augmentation.mixup)
    assert torch.equal(images.inputs, before)


def test_masks_are_cropped_and_flipped_with_their_images(scenes):
    augmentation = Augmentation(crop=2, flip=True)
    index = torch.arange(12)
    batch = augmentation(scenes, index, seed=3, epoch=0, ignore_index=9)
    for i in range(12):
        image, mask = moved(augmentation, scenes, i, 3, 0, ignore_index=9)
        torch.testing.assert_close(batch.inputs[i], image)
        assert torch.equal(batch.labels[i], mask)
    assert (batch.labels == 9).any()


def test_mixup_of_vectors():
    split = Split(torch.randn(10, 3), torch.arange(10), torch.arange(10))
    batch = Augmentation(mixup=1.0)(split, torch.arange(10), seed=0, epoch=0)
    expected = (
        batch.share[:, None] * split.inputs
        + (1 - batch.share)[:, None] * (split.inputs[batch.other_labels])
    )
    torch.testing.assert_close(batch.inputs, expected)


def test_each_word_becomes_unknown_with_the_probability():
    # Thirty texts of at most nine words, including the unknown one, and padding.
    tokens = torch.randint(1, 50, (30, 9))
    tokens[torch.arange(9) >= torch.randint(1, 10, (30, 1))] = 0
    texts, before = Split(tokens, torch.arange(30) % 4, torch.arange(30)), tokens.clone()
    index = torch.tensor([7, 0, 29, 7])
    batch = Augmentation(word_dropout=0.4)(texts, index, seed=5, epoch=2)
    expected = tokens[index].tolist()
    for row, position in zip(expected, index.tolist(), strict=True):
        for place, word in enumerate(row):
            if word and one_number(5, 2, WORD, position * 9 + place) < 0.4:
                row[place] = 1
    assert batch.inputs.tolist() == expected
    assert batch.inputs.dtype == torch.int64
    assert torch.equal(batch.labels, texts.labels[index])
    assert torch.equal(tokens, before)


def test_random_numbers_are_uniform_independent_and_the_same_on_every_machine():
    many = uniform(0, 0, 0, np.arange(100_000))
    assert stats.kstest(many, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(many[1:], many[:-1])[0, 1]) < 0.01
    for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert abs(np.corrcoef(many, uniform(*other, np.arange(100_000)))[0, 1]) < 0.01
    index = np.arange(1000)
    assert not np.array_equal(uniform(1, 2, 0, index), uniform(2, 1, 0, index))
    assert not np.array_equal(uniform(1, 0, 2, index), uniform(1, 2, 0, index))
    golden = [0.40633139146067065, 0.6805132878310347]
    assert uniform(1, 2, 3, np.array([4, 5])).tolist() == golden


def test_inputs_that_do_not_fit_and_settings_out_of_range_raise(images, scenes):
    vectors = Split(torch.randn(4, 3), torch.arange(4), torch.arange(4))
    tokens = Split(torch.ones(4, 3).long(), torch.arange(4), torch.arange(4))
    for settings, split, message in (
        ({"crop": 1}, vectors, "crop and flip are for images"),
        ({"flip": True}, vectors, "crop and flip are for images"),
        ({"mixup": 0.2}, tokens, "mixup is for images and vectors, not for token ids"),
        ({"crop": 1}, scenes, "need ignore_index"),
        ({"word_dropout": 0.1}, images, "word_dropout is for text"),
    ):
        with pytest.raises(ValueError, match=message):
            Augmentation(**settings)(split, torch.arange(4), seed=0, epoch=0)
    nan, inf = float("nan"), float("inf")
    for name, values in {
        "crop": [-1],
        "mixup": [-0.1, nan, inf],
        "word_dropout": [-0.1, 1.0, nan],
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name} must"):
                Augmentation(**{name: value})
