"""What holds for the identity, the ensemble and every one-versus-rest calibrator."""

from functools import cache

import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators.ensemble import EnsembleTemperature
from calibrant.calibrators.histogram import HistogramBinning
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.isotonic import IsotonicRegression, OrderPreservingIsotonic
from calibrant.calibrators.logistic import BetaCalibration, PlattScaling, QuadraticScaling
from calibrant.data import SYNTHETIC
from calibrant.metrics import nll

SMOOTH = [Identity, EnsembleTemperature, PlattScaling, BetaCalibration, QuadraticScaling]
STEPPED = [IsotonicRegression, OrderPreservingIsotonic, HistogramBinning]
CASES = {kind.__name__: kind for kind in [*SMOOTH, *STEPPED]}
KEEPING = {name: kind for name, kind in CASES.items() if kind.keeps_argmax}


def drawn(n: int, k: int, *, sharper: float = 1.0, seed: int = 0) -> Predictions:
    """Random logits, labels drawn from their softmax, then all logits times `sharper`."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return Predictions(sharper * logits, labels)


@cache
def fitted(kind, k, *, sharper=2.0):
    return kind.fit(drawn(2000, k, sharper=sharper))


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("kind", CASES.values(), ids=CASES)
class TestEveryOne:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_finite_and_normalised_at_any_gap(self, kind, k, dtype):
        logits = torch.zeros(5, 3, k, dtype=dtype)
        gaps = torch.tensor([0.0, 1e-30, 1.0, 100.0, 1e4], dtype=dtype)
        logits[:, 0, 0] = logits[:, 1, -1] = gaps
        logits[:, 2, 1] = -gaps
        logits = logits.reshape(15, k).requires_grad_(True)
        log_probs = fitted(kind, k)(logits)
        assert log_probs.dtype == dtype
        assert log_probs.isfinite().all()
        assert (log_probs <= 1e-6).all()
        torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(15, dtype=dtype))
        if log_probs.requires_grad:
            (slope,) = torch.autograd.grad(log_probs.sum(), logits)
            assert slope.isfinite().all()

    def test_fits_float32_as_float64(self, kind, k):
        wide = drawn(2000, k, sharper=2)
        narrow = Predictions(wide.logits.float(), wide.labels)
        same = Predictions(narrow.logits.double(), wide.labels)
        one, other = kind.fit(narrow), kind.fit(same)
        for name, value in one.parameters.items():
            torch.testing.assert_close(value, other.parameters[name], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            one(narrow.logits).double().exp(), other(same.logits).exp(), rtol=2e-4, atol=2e-5
        )

    def test_takes_no_rows(self, kind, k):
        assert fitted(kind, k)(torch.zeros(0, k)).shape == (0, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KEEPING.values(), ids=KEEPING)
class TestEveryOneThatKeepsThePredictedClass:
    def test_does_so_on_random_logits(self, kind, dtype):
        for k in (2, 3, 30):
            calibrator = kind.fit(drawn(3000, k, sharper=2))
            for scale in (1e-6, 1e-3, 1.0, 10.0, 1e3):
                logits = (scale * torch.randn(3000, k, dtype=torch.float64)).to(dtype)
                assert torch.equal(calibrator(logits).argmax(1), logits.argmax(1))

    def test_does_so_where_logits_differ_in_the_last_digit(self, kind, dtype):
        calibrator = fitted(kind, 4, sharper=0.5)
        logits = torch.randn(4000, 4, dtype=dtype)
        top = logits.max(1).values
        rows = torch.arange(4000)
        logits[rows, rows % 4] = torch.nextafter(top, torch.full_like(top, torch.inf))
        logits[rows, (rows + 1) % 4] = top
        log_probs = calibrator(logits)
        assert torch.equal(log_probs.argmax(1), logits.argmax(1))
        assert log_probs.isfinite().all()

    def test_does_so_on_real_logits(self, kind, dtype, real_data):
        examples = Predictions.load(
            real_data / "logits_netcal_wideresnet164cifar100.npz",
            logits="logits_test",
            labels="labels_test",
            ignore=["*"],
        )
        examples = Predictions(examples.logits.to(dtype), examples.labels)
        after = kind.fit(examples)(examples.logits)
        assert torch.equal(after.argmax(1), examples.logits.argmax(1))


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("kind", SMOOTH, ids=lambda kind: kind.__name__)
def test_gradients_of_smooth_maps_match_finite_differences(kind, k):
    logits = drawn(6, k, seed=3).logits.requires_grad_(True)
    assert torch.autograd.gradcheck(fitted(kind, k).log_probs, logits)


@pytest.mark.parametrize("kind", SMOOTH, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", SYNTHETIC)
def test_families_that_hold_the_identity_never_fit_worse_than_it(kind, name):
    examples = SYNTHETIC[name].sample(3000, seed=0).predictions
    if examples.classes > 2 and kind not in (Identity, EnsembleTemperature):
        # One versus rest is a promise about each binary problem.
        top = examples.probs[:, :1]
        examples = Predictions.from_probs(
            torch.cat([1 - top, top], 1), (examples.labels == 0).long()
        )
    assert nll(examples.map(kind.fit(examples))) <= nll(examples) + 1e-9


@pytest.mark.parametrize(
    "kind",
    [PlattScaling, BetaCalibration, QuadraticScaling, IsotonicRegression, HistogramBinning],
)
def test_one_versus_rest_refuses_a_class_that_never_occurs(kind):
    examples = drawn(500, 4)
    without = examples.take((examples.labels != 2).nonzero()[:, 0])
    with pytest.raises(ValueError, match="1 of 4 classes never occur: 2"):
        kind.fit(without)
