"""torchmetrics metrics: the same numbers as ours, from any number of processes."""

import pickle
import socket

import pytest
import torch
import torch.multiprocessing as mp
from torchmetrics import MetricCollection

from calibrant import Predictions, metrics
from calibrant.integrations.torchmetrics import ECE, MCE, RMSCE, AdaptiveECE, ClasswiseECE

CASES = {
    "ece": (lambda: ECE(kind="logits"), metrics.ece),
    "ece_of_7_bins": (lambda: ECE(kind="logits", bins=7), lambda p: metrics.ece(p, bins=7)),
    "rmsce": (lambda: RMSCE(kind="logits"), metrics.rmsce),
    "mce": (lambda: MCE(kind="logits"), metrics.mce),
    "adaptive": (lambda: AdaptiveECE(kind="logits"), metrics.adaptive_ece),
    "classwise": (lambda: ClasswiseECE(kind="logits", classes=5), metrics.classwise_ece),
}


def data(n=4000, k=5, *, masked=False):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, k, generator=generator) * 3
    if masked:
        # The first class stays possible.
        logits[:, 1:][torch.rand(n, k - 1, generator=generator) < 0.4] = -torch.inf
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
    return logits, labels


@pytest.mark.parametrize(("make", "reference"), CASES.values(), ids=CASES)
class TestEveryMetric:
    @pytest.mark.parametrize("masked", [False, True])
    def test_batches_give_the_value_of_all_examples(self, make, reference, masked):
        logits, labels = data(masked=masked)
        metric = make()
        sizes = set()
        for part in torch.arange(len(labels)).split(333):
            metric.update(logits[part], labels[part])
            sizes.add(sum(getattr(metric, state).nbytes for state in metric._defaults))
        assert len(sizes) == 1
        expected = reference(Predictions(logits, labels))
        grid = isinstance(metric, AdaptiveECE)  # its bins end at cells of a fixed grid
        assert float(metric.compute()) == pytest.approx(expected, abs=1e-3 if grid else 1e-12)

    def test_reset_copies_and_pickles_preserve_the_state(self, make, reference):
        logits, labels = data(500)
        metric = make()
        metric.update(logits, labels)
        copy = pickle.loads(pickle.dumps(metric))  # noqa: S301, our own bytes
        assert torch.equal(copy.compute(), metric.compute())
        for each in (metric, copy):
            each.reset()
            each.update(logits[:100], labels[:100])
        assert torch.equal(copy.compute(), metric.compute())
        assert float(copy.compute()) == pytest.approx(
            reference(Predictions(logits[:100], labels[:100])), abs=0.02
        )


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_kind_and_classes_are_checked():
    with pytest.raises(ValueError, match="kind must be 'logits' or 'probs', got 'scores'"):
        ECE(kind="scores")
    with pytest.raises(ValueError, match="expected 4 classes, got 5"):
        ClasswiseECE(kind="logits", classes=4).update(*data(10))
    logits, labels = data(100)
    metric = ECE(kind="probs", bins=5)
    with pytest.raises(ValueError, match=r"probs outside \[0, 1\]"):
        metric.update(logits, labels)
    metric.update(logits.softmax(1), labels)
    expected = metrics.ece(Predictions(logits, labels), bins=5)
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)


def test_an_empty_metric_says_so():
    with pytest.warns(UserWarning, match="before"), pytest.raises(ValueError, match="nothing was"):
        ECE(kind="logits").compute()


def test_works_in_a_collection_and_gives_the_sums_of_a_reliability_diagram():
    collection = MetricCollection({"ece": ECE(kind="logits"), "mce": MCE(kind="logits")})
    logits, labels = data()
    collection.update(logits, labels)
    found, expected = collection.compute(), Predictions(logits, labels)
    assert float(found["mce"]) == pytest.approx(metrics.mce(expected))
    assert float(found["ece"]) == pytest.approx(metrics.ece(expected))
    counts = metrics.BinSums.of(expected).count
    assert collection["ece"].sums().count.tolist() == counts.tolist()


def _rank(rank, port, results):
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    logits, labels = data()
    # Unequal shares: a mean of the two ranks' errors would be wrong.
    mine = slice(0, 1000) if rank == 0 else slice(1000, None)
    found = {}
    for name, (make, _) in CASES.items():
        metric = make()
        for part in torch.arange(len(labels))[mine].split(250):
            metric.update(logits[part], labels[part])
        found[name] = float(metric.compute())
    results[rank] = found
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_value_of_one():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_rank, (port, results), nprocs=2)
        found = dict(results)
    logits, labels = data()
    for name, (make, _) in CASES.items():
        metric = make()
        metric.update(logits, labels)
        one = float(metric.compute())
        assert found[0][name] == pytest.approx(one, rel=1e-12), name
        assert found[0][name] == found[1][name]
