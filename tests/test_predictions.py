"""Predictions: what goes in comes out, checked once, and nothing can change it."""

import re
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from calibrant import Predictions, metrics
from calibrant.example_stats import CHUNK


def random_predictions(n=50, k=4, seed=0, **fields):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64) * 2
    return Predictions(logits, torch.randint(k, (n,), generator=generator), **fields)


def test_example_stats_equal_a_loop():
    p = random_predictions()
    for i, (z, y) in enumerate(zip(p.logits.tolist(), p.labels.tolist(), strict=True)):
        e = np.exp(np.array(z) - max(z))
        probs = e / e.sum()
        assert p.predicted[i] == probs.argmax()
        assert p.confidence[i] == pytest.approx(probs.max(), abs=1e-15)
        assert p.correct[i] == (probs.argmax() == y)
        assert p.example_stats.label_log_prob[i] == pytest.approx(np.log(probs[y]), abs=1e-13)
        assert p.example_stats.squared_norm[i] == pytest.approx((probs**2).sum(), abs=1e-15)
    assert_close(p.log_probs, p.probs.log())


def test_example_stats_do_not_depend_on_chunks_and_threads():
    k = 7
    whole = random_predictions(3 * CHUNK // k, k)
    parts = [
        Predictions(whole.logits[i], whole.labels[i]) for i in torch.arange(len(whole)).chunk(5)
    ]
    for name in ("predicted", "confidence", "label_prob", "label_log_prob", "squared_norm"):
        pieces = torch.cat([getattr(part.example_stats, name) for part in parts])
        assert_close(pieces, getattr(whole.example_stats, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_example_does_not_depend_on_other_examples(dtype):
    logits = (random_predictions(40, 6).logits * torch.logspace(-2, 3, 40)[:, None]).to(dtype)
    whole = Predictions(logits, torch.arange(40) % 6)
    for i in range(40):
        alone = Predictions(logits[i : i + 1], whole.labels[i : i + 1])
        for name in ("confidence", "label_prob", "label_log_prob", "squared_norm"):
            one, other = (getattr(each.example_stats, name) for each in (alone, whole))
            assert_close(one[0], other[i], msg=name)
        assert_close(alone.probs[0], whole.probs[i])
    assert (whole.example_stats.label_log_prob <= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_promoted_to_float32(dtype):
    p = Predictions(torch.tensor([[2.0, 0.5]], dtype=dtype), [0])
    assert p.logits.dtype == torch.float32
    probs = torch.tensor([[0.7, 0.3], [0.55, 0.45]], dtype=dtype)
    assert Predictions.from_probs(probs, [0, 1]).probs.dtype == torch.float32


@pytest.mark.parametrize(
    "logits",
    [
        [[1, 0], [0, 3]],
        np.array([[1, 0], [0, 3]], dtype=">f8"),
        np.array([[1, 0], [0, 3]], dtype=np.uint16),
        np.asfortranarray([[1.0, 0.0], [0.0, 3.0]]),
        np.array([[0.0, 1.0], [3.0, 0.0]])[:, ::-1],
        torch.tensor([[1.0, 0.0], [0.0, 3.0]], requires_grad=True),
        np.frombuffer(np.array([1.0, 0.0, 0.0, 3.0]).tobytes()).reshape(2, 2),
        np.ma.array([[1.0, 0.0], [0.0, 3.0]]),
    ],
)
def test_many_dtypes_are_accepted(logits):
    p = Predictions(logits, np.array([0.0, 1.0]))
    assert p.predicted.tolist() == [0, 1]
    assert not p.logits.requires_grad
    assert p.labels.dtype == torch.int64


def test_is_immutable():
    p = random_predictions()
    with pytest.raises(AttributeError, match="are immutable"):
        p.labels = p.labels
    with pytest.raises(AttributeError, match="are immutable"):
        del p.labels
    assert len(p) == 50


def test_probabilities_are_stored_exactly():
    probs = np.array([[0.6, 0.4], [1 / 3, 2 / 3], [1.0, 0.0]])
    p = Predictions.from_probs(probs, [0, 1, 0])
    assert p.probs.numpy().tolist() == probs.tolist()
    assert p.confidence.tolist() == [0.6, 2 / 3, 1.0]
    assert p.log_probs[2].tolist() == [0.0, -np.inf]


def test_probabilities_and_their_logs_give_the_same_stats():
    p = random_predictions()
    q = Predictions.from_probs(p.probs, p.labels)
    assert_close(q.example_stats.confidence, p.example_stats.confidence)
    assert_close(q.example_stats.label_log_prob, p.example_stats.label_log_prob)
    assert_close(q.map(lambda z: z).confidence, p.confidence)


def test_map_applies_to_logits_and_preserves_labels_and_names():
    p = random_predictions(class_names="abcd")
    q = p.map(lambda logits: logits / 2)
    assert_close(q.logits, p.logits / 2)
    assert torch.equal(q.labels, p.labels)
    assert q.class_names == p.class_names


def test_normalize_divides_by_the_sum():
    p = Predictions.from_probs([[3.0, 1.0], [1.0, 1.0]], [0, 1], normalize=True)
    assert p.probs.tolist() == [[0.75, 0.25], [0.5, 0.5]]


def test_extreme_logits_have_exact_probabilities():
    p = Predictions([[0.0, -np.inf, 0.0]], [1])
    assert p.probs.tolist() == [[0.5, 0.0, 0.5]]
    assert p.example_stats.label_log_prob.item() == -np.inf
    p = Predictions(np.array([[300.0, 0.0]], dtype=np.float32), [1])
    assert p.example_stats.label_log_prob.item() == -300


@pytest.mark.parametrize("kind", ["probs", "logits"])
def test_binary_scores_are_the_second_column(kind):
    scores = np.array([0.9, 0.2, 0.5]) if kind == "probs" else np.array([2.0, -1.5, 0.0])
    p = Predictions.from_binary(scores, [1, 1, 0], kind=kind)
    one = scores if kind == "probs" else 1 / (1 + np.exp(-scores))
    np.testing.assert_allclose(p.probs[:, 1].numpy(), one, atol=1e-15)
    assert p.predicted.tolist() == [1, 0, 0]


def test_dense_logits_become_one_example_for_each_valid_pixel():
    logits = torch.randn(2, 3, 4, 5)
    labels = torch.randint(3, (2, 4, 5))
    labels[0, :2] = 255
    p = Predictions.from_dense(logits, labels, ignore_index=255)
    # As MONAI has them.
    same = Predictions.from_dense(logits, labels[:, None], ignore_index=255)
    assert same.sha256 == p.sha256
    assert len(p) == 2 * 20 - 10
    assert p.groups.bincount().tolist() == [10, 20]
    rows = [
        logits[n, :, i, j]
        for n in range(2)
        for i in range(4)
        for j in range(5)
        if labels[n, i, j] != 255
    ]
    assert torch.equal(p.logits, torch.stack(rows))


def test_labels_may_be_names():
    p = Predictions([[1.0, 0.0], [0.0, 1.0]], ["dog", "cat"], class_names=["cat", "dog"])
    assert p.labels.tolist() == [1, 0]


@given(fraction=st.floats(0.1, 0.9), seed=st.integers(0, 1000))
def test_split_is_a_reproducible_partition(fraction, seed):
    p = Predictions(torch.arange(60.0)[:, None] + torch.tensor([0.0, 1.0]), torch.zeros(60).int())
    first, second = p.split(fraction, seed=seed)
    assert len(first) == round(60 * fraction)
    assert sorted(torch.cat([first.logits[:, 0], second.logits[:, 0]]).tolist()) == list(range(60))
    assert torch.equal(first.logits, p.split(fraction, seed=seed)[0].logits)


def test_split_does_not_split_groups():
    groups = np.repeat(np.arange(12), 5)
    p = Predictions(torch.randn(60, 3), torch.zeros(60).int(), groups=groups)
    first, second = p.split(0.5, seed=3)
    sizes = [len(part) for part in (first, second)]
    assert sizes == [30, 30]
    rows_of_groups = [{tuple(r) for r in p.logits[groups == g].tolist()} for g in range(12)]
    kept = {tuple(r) for r in first.logits.tolist()}
    assert all(rows <= kept or not rows & kept for rows in rows_of_groups)


def test_take_selects_weights_groups_and_names():
    p = random_predictions(6, weights=[1, 2, 3, 4, 5, 6], groups=list("aabbcc"))
    q = p.take([4, 4, 0])
    assert torch.equal(q.logits, p.logits[[4, 4, 0]])
    assert q.weights.tolist() == [5, 5, 1]
    assert q.groups.tolist() == [1, 1, 0]
    assert torch.equal(q.confidence, p.confidence[[4, 4, 0]])
    assert len(p.take(p.correct.bool())) == int(p.correct.sum())


def test_take_accepts_negative_and_any_integer_indices():
    p = random_predictions(6)
    assert torch.equal(p.take([-1, 0]).logits, p.logits[[5, 0]])
    # torch would take a tensor of uint8 for a mask.
    for index in (np.array([1, 0, 1], dtype=np.uint8), torch.tensor([1, 0, 1]).byte()):
        assert torch.equal(p.take(index).logits, p.logits[[1, 0, 1]])


def test_concat_inverts_a_split():
    p = random_predictions(20, weights=np.arange(1.0, 21), groups=np.arange(20) // 2)
    joined = Predictions.concat([p.take(range(8)), p.take(range(8, 20))])
    for name in ("logits", "labels", "weights", "groups"):
        assert torch.equal(getattr(joined, name), getattr(p, name))


def test_concat_mixes_logits_with_probabilities_and_uses_class_names_of_any_part():
    p = random_predictions(class_names="abcd")
    for parts in ([p, Predictions.from_probs(p.probs, p.labels)], [random_predictions(), p]):
        joined = Predictions.concat(parts)
        assert_close(joined.confidence[:50], joined.confidence[50:])
        assert joined.class_names == tuple("abcd")
    with pytest.raises(ValueError, match=r"part 1 has groups, part 0 has none: pass groups=\.\.\."):
        Predictions.concat([p, random_predictions(groups=np.arange(50))])


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "safetensors"])
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_save_and_load_round_trip(tmp_path, suffix, kind):
    p = random_predictions(weights=np.arange(1.0, 51), groups=np.arange(50) // 5)
    if kind == "probs":
        p = Predictions.from_probs(p.probs, p.labels, weights=p.weights, groups=p.groups)
    p.save(tmp_path / f"p.{suffix}")
    q = Predictions.load(tmp_path / f"p.{suffix}")
    for name in ("logits", "probs", "labels", "weights", "groups"):
        assert torch.equal(getattr(q, name), getattr(p, name)), name


def test_load_reads_the_given_names(tmp_path):
    p = random_predictions()
    np.savez(tmp_path / "x.npz", z=p.logits.numpy(), y=p.labels.numpy(), p=p.probs.numpy())
    read = partial(Predictions.load, tmp_path / "x.npz", labels="y")
    assert torch.equal(read(logits="z", ignore=["p"]).logits, p.logits)
    assert torch.equal(read(probs="p", ignore=["*"]).probs, p.probs)


def test_load_skips_ignored_names(tmp_path):
    p = random_predictions(weights=np.arange(1.0, 51), groups=np.arange(50) // 5)
    for path in (tmp_path / "p.npz", tmp_path / "p.csv"):
        p.save(path)
        assert Predictions.load(path, ignore=["weights"]).weights is None
        # A pattern is for names that are not known.
        assert Predictions.load(path, ignore=["*"]).groups is not None
        with pytest.raises(ValueError, match="cannot ignore 'labels'"):
            Predictions.load(path, ignore=["labels"])


def test_weights_are_required_in_all_parts_or_none(tmp_path):
    p = random_predictions(30)
    p.take(range(10)).save(tmp_path / "part-0.npz")
    p.take(range(10, 30)).reweighted(np.ones(20)).save(tmp_path / "part-1.npz")
    with pytest.raises(ValueError, match=r"part-1.npz has \['weights'\] of .*part-0.npz has \[\]"):
        Predictions.load(f"{tmp_path}/part-*.npz")


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "safetensors"])
def test_one_flipped_bit_in_a_name_never_drops_an_array(tmp_path, suffix):
    p = random_predictions(weights=np.arange(1.0, 51), groups=np.arange(50) // 5)
    path = tmp_path / f"p.{suffix}"
    p.save(path)
    data = path.read_bytes()
    for name in (b"weights", b"groups"):
        places = [match.start() for match in re.finditer(name, data)]
        assert places
        for place in places:
            for bit in range(0, 8 * len(name), 3):
                damaged = bytearray(data)
                damaged[place + bit // 8] ^= 1 << bit % 8
                path.write_bytes(damaged)
                try:
                    q = Predictions.load(path)
                except (ValueError, UserWarning) as error:
                    assert path.name in str(error)  # noqa: PT017
                else:
                    assert q.sha256 == p.sha256
                    assert torch.equal(q.groups, p.groups)


@pytest.mark.parametrize("size", [1e-13, 1e-3, 5e11])
def test_the_scale_of_weights_does_not_change_an_error(size):
    weights = np.arange(1.0, 51)
    p = random_predictions(weights=weights)
    with pytest.warns(UserWarning, match="rescale") if size < 1e-4 else nullcontext():
        scaled = p.reweighted(weights * size)
    for metric in (metrics.ece, metrics.accuracy, metrics.nll, metrics.brier):
        assert metric(scaled) == pytest.approx(metric(p), rel=1e-9)


def test_load_accepts_one_score_for_two_classes_and_concatenates_the_files_of_a_pattern(tmp_path):
    np.savez(tmp_path / "x.npz", probs=np.array([0.9, 0.2]), labels=np.array([1, 0]))
    assert Predictions.load(tmp_path / "x.npz").probs[:, 1].tolist() == [0.9, 0.2]
    p = random_predictions(30)
    p.take(range(10)).save(tmp_path / "part-0.parquet")
    p.take(range(10, 30)).save(tmp_path / "part-1.parquet")
    assert torch.equal(Predictions.load(f"{tmp_path}/part-*.parquet").logits, p.logits)


def test_real_logits_load(real_data):
    path = real_data / "logits_pytorchcifar10_resnet18.npz"
    p = Predictions.load(path, logits="logits_test", labels="labels_test", ignore=["*"])
    assert len(p) == 10_000
    assert float(p.correct.mean()) == pytest.approx(0.9171)
