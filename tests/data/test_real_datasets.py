"""The real files, if they are present."""

import pytest
import torch

from calibrant.data import DATASETS, load

# Name, a file that must be there, examples of train, val and test, classes, shape.
REAL = [
    ("cifar10", "cifar10_A.npz", (22_500, 2_500, 5_000), 10, (3, 32, 32)),
    ("fashion_mnist", "fashion_mnist.npz", (54_000, 6_000, 10_000), 10, (1, 28, 28)),
    ("20news", "20news_bydate.npz", (10_183, 1_131, 7_532), 20, (400,)),
    ("agnews", "agnews_10k.npz", (9_001, 1_000, 7_600), 4, (64,)),
    ("sst5", "sst5.npz", (8_544, 1_101, 2_210), 5, (50,)),
    ("trec", "trec.npz", (4_907, 545, 500), 6, (24,)),
    ("camvid", "camvid_A_trainval.npz", (330, 37, 101), 11, (3, 120, 160)),
]


@pytest.fixture
def folder(real_data):
    def of(file):
        if not (real_data / file).exists():
            pytest.skip(f"no {file} at {real_data}")
        return real_data

    return of


@pytest.mark.parametrize(("name", "file", "sizes", "classes", "shape"), REAL)
def test_real_files_give_the_known_sizes_and_disjoint_splits(
    folder, name, file, sizes, classes, shape
):
    splits = load(name, 0, root=folder(file))
    parts = (splits.train, splits.val, splits.test)
    assert tuple(map(len, parts)) == sizes
    assert (splits.classes, splits.shape, splits.kind) == (classes, shape, DATASETS[name].kind)
    assert len(torch.cat([part.rows for part in parts]).unique()) == sum(sizes)
    if splits.kind != "masks":
        assert all(len(part.labels.unique()) == classes for part in parts)
    if splits.train.scale is not None:
        batch = splits.train.batch(torch.arange(len(splits.train))[::7])
        assert batch.inputs.mean((0, 2, 3)).abs().max() < 0.06
        assert (batch.inputs.std((0, 2, 3)) - 1).abs().max() < 0.06


def test_human_labels_of_cifar_agree_with_most_labels(folder):
    splits = load("cifar10", 0, root=folder("cifar10_A.npz"), human=True, limit=2000)
    agreed = (splits.test.posterior.argmax(1) == splits.test.labels).float().mean()
    assert agreed > 0.97


def test_human_noise_is_as_large_as_published(folder):
    root = folder("cifar10n_A.npz")
    clean = load("cifar10", 0, root=root, limit=6000).train.labels
    for which, wrong in (("worse", 0.402), ("aggregate", 0.09), ("random1", 0.172)):
        noisy = load("cifar10", 0, root=root, label_noise=which, limit=6000).train.labels
        assert float((noisy != clean).float().mean()) == pytest.approx(wrong, abs=0.02)
