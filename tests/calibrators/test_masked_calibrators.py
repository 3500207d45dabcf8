"""Classes masked by a logit of -inf, over all calibrators: before, in and after a fit."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, Blend, Calibrator, TopLabelSpline, select
from calibrant.calibrators.focal_map import focal_map, inverse_focal_map
from calibrant.calibrators.masks import far_below
from calibrant.calibrators.one_versus_rest import OneVersusRest

K = 5
PARTS = ("temperature", "vector", "platt", "irm")
each = pytest.mark.parametrize("name", [*CALIBRATORS, "blend"])


def masked_examples(n: int = 1500, *, seed: int = 0, least: int = 1) -> Predictions:
    """Over-confident predictions with `least` to five allowed classes each."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, K)) * 1.5
    options = generator.integers(least, K + 1, n)[:, None]
    logits[generator.permuted(np.tile(np.arange(K), (n, 1)), axis=1) >= options] = -np.inf
    labels = (logits + generator.gumbel(size=(n, K))).argmax(1)
    return Predictions(2 * logits + np.linspace(-0.5, 0.5, K), labels)


def with_masked_class(predictions: Predictions) -> Predictions:
    """The same with a sixth class, which no example may belong to."""
    column = torch.full((len(predictions), 1), -torch.inf, dtype=torch.float64)
    return Predictions(torch.cat([predictions.logits, column], 1), predictions.labels)


def quietly(name: str, predictions: Predictions) -> Calibrator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if name == "blend":
            parts = [CALIBRATORS[each].fit(predictions) for each in PARTS]
            return Blend(classes=predictions.classes, parts=tuple(parts))
        return CALIBRATORS[name].fit(predictions)


@pytest.fixture(scope="module")
def fitted() -> dict[str, Calibrator]:
    data = masked_examples()
    return {name: quietly(name, data) for name in [*CALIBRATORS, "blend"]}


def restricted(calibrator: Calibrator, allowed: list[int]) -> Calibrator:
    """The calibrator of some of the classes: the parameters of the others are removed."""
    if isinstance(calibrator, Blend):
        parts = tuple(restricted(part, allowed) for part in calibrator.parts)
        return Blend(classes=len(allowed), parts=parts)
    given = dict(calibrator.parameters)
    if "offsets" in given:
        sizes = given["offsets"].diff()
        for key, value in given.items():
            if key != "offsets":
                # There is one edge less than cells.
                parts = value.split((sizes - int(key == "edges")).tolist())
                given[key] = torch.cat([parts[at] for at in allowed])
        given["offsets"] = torch.cat([torch.zeros(1).long(), sizes[allowed].cumsum(0)])
    elif "slope" not in given and not isinstance(calibrator, TopLabelSpline):
        for key in ("scale", "bias", "coefficients", "edges", "values", "weight", "knots"):
            if key in given:
                given[key] = given[key][allowed]
        if "weight" in given:
            given["weight"] = given["weight"][:, allowed]
    return replace(calibrator, classes=len(allowed), **given)


@each
class TestEveryCalibrator:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_gives_masked_classes_a_probability_of_exactly_zero(self, fitted, name, dtype):
        logits = masked_examples(500, seed=1).logits.to(dtype)
        found = fitted[name](logits)
        assert bool((found.isneginf() == logits.isneginf()).all())
        assert not bool(found.isnan().any())
        assert bool((found.exp()[logits.isneginf()] == 0).all())
        torch.testing.assert_close(
            found.exp().sum(1), torch.ones(500, dtype=dtype), atol=1e-5, rtol=0
        )
        if fitted[name].keeps_argmax:
            assert bool((found.argmax(1) == logits.argmax(1)).all())

    def test_is_the_calibrator_of_the_allowed_classes(self, fitted, name):
        for logits in masked_examples(12, seed=2, least=3).logits:
            allowed = (logits > -torch.inf).nonzero()[:, 0].tolist()
            alone = restricted(fitted[name], allowed)(logits[allowed][None])
            torch.testing.assert_close(
                fitted[name](logits[None])[:, allowed], alone, atol=1e-9, rtol=1e-9
            )

    def test_is_certain_of_the_only_class_that_is_left(self, fitted, name):
        logits = torch.full((K, K), -torch.inf, dtype=torch.float64).fill_diagonal_(-3.0)
        torch.testing.assert_close(
            fitted[name](logits).exp(), torch.eye(K).double(), atol=1e-12, rtol=0
        )

    def test_has_finite_gradients_that_are_zero_for_masked_classes(self, fitted, name):
        logits = masked_examples(200, seed=3).logits.clone().requires_grad_()
        out = fitted[name](logits)
        if name in ("venn_abers", "histogram", "scaling_binning"):
            assert not out.requires_grad
            return
        out[~logits.isneginf()].sum().backward()
        assert bool(logits.grad.isfinite().all())
        assert bool((logits.grad[logits.isneginf()] == 0).all())

    def test_does_not_count_masked_classes_in_the_fit(self, name):
        data = masked_examples(800, seed=4)
        probe = masked_examples(200, seed=5).logits
        one, more = quietly(name, data), quietly(name, with_masked_class(data))
        beside = torch.full((200, 1), -torch.inf, dtype=torch.float64)
        found = more(torch.cat([probe, beside], 1))
        # The search of matrix scaling stops by its gradient, at slightly different points.
        torch.testing.assert_close(found[:, :K].exp(), one(probe).exp(), atol=1e-6, rtol=0)
        assert bool(found[:, K].isneginf().all())

    def test_repairs_over_confidence(self, fitted, name):
        test = masked_examples(1500, seed=6)
        after = metrics.nll(test.map(fitted[name]))
        assert np.isfinite(after)
        assert name == "identity" or after < metrics.nll(test) - 0.02

    def test_refuses_to_fit_to_masked_labels_and_rows_without_a_class(self, fitted, name):
        data = masked_examples(50, least=2)
        labels = data.labels.clone()
        row = int(data.logits.isneginf().any(1).nonzero()[0])
        labels[row] = data.logits[row].argmin()
        if name not in ("identity", "blend"):
            with pytest.raises(ValueError, match=rf"label of 1 of 50 .* masked.*at row {row}\)"):
                quietly(name, Predictions(data.logits, labels))
        with pytest.raises(ValueError, match="row 1 is -inf for every class; allow at least one"):
            fitted[name](torch.stack([torch.zeros(K), torch.full((K,), -torch.inf)]))


def test_temperature_is_the_best_one_over_the_allowed_classes():
    data = masked_examples()

    def loss(inverse: float) -> float:
        total = 0.0
        for row, label in zip(data.logits.numpy(), data.labels.tolist(), strict=True):
            scaled = row[row > -np.inf] * inverse
            total += np.logaddexp.reduce(scaled) - row[label] * inverse
        return total

    best = minimize_scalar(loss, bounds=(0.2, 1.0), method="bounded", options={"xatol": 1e-9})
    found = CALIBRATORS["temperature"].fit(data).temperature
    assert found == pytest.approx(1 / best.x, rel=1e-6)


def test_two_classes_with_masks_are_fitted_to_the_rows_that_have_both():
    generator = np.random.default_rng(0)
    logits = np.stack([np.zeros(400), generator.normal(size=400) * 3], 1)
    labels = (logits[:, 1] / 2 + generator.logistic(size=400) > 0).astype(int)
    masked = logits.copy()
    masked[::4, 0], labels[::4] = -np.inf, 1
    both = np.arange(400) % 4 > 0
    one_function = [name for name, kind in CALIBRATORS.items() if issubclass(kind, OneVersusRest)]
    for name in ("temperature", *one_function):
        all_rows = quietly(name, Predictions(masked, labels))
        some = quietly(name, Predictions(logits[both], labels[both]))
        probe = torch.from_numpy(logits)
        torch.testing.assert_close(all_rows(probe).exp(), some(probe).exp(), atol=1e-6, rtol=0)
        assert all_rows(torch.tensor([[0.0, -torch.inf]])).exp().tolist() == [[1.0, 0.0]]


def test_masked_classes_are_named_in_a_warning():
    data = with_masked_class(masked_examples(300))
    with pytest.warns(UserWarning, match="1 of 6 classes are masked in every example: 5; their"):
        CALIBRATORS["platt"].fit(data)


def test_a_selection_and_its_blend_preserve_masks():
    data = masked_examples(600)
    names = ["identity", "temperature", "ensemble_temperature", "structured_vector", "irm"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = select(data, candidates=names, folds=2)
    assert not found.skipped
    for calibrator in (found.best, found.blend):
        assert bool((calibrator(data.logits).isneginf() == data.logits.isneginf()).all())


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 2.0])
def test_the_focal_map_and_its_inverse_leave_masked_classes_out(gamma):
    logits = torch.tensor([[1.0, -torch.inf, 0.3, 2.0], [-torch.inf, 1.0, -torch.inf, -torch.inf]])
    found = focal_map(logits.double(), gamma)
    alone = focal_map(logits[:1, [0, 2, 3]].double(), gamma)
    torch.testing.assert_close(found[:1, [0, 2, 3]], alone)
    assert found[1].exp().tolist() == [0.0, 1.0, 0.0, 0.0]
    if gamma >= 0:
        back = inverse_focal_map(found, gamma).exp()
        torch.testing.assert_close(back, logits.double().softmax(1))


def test_a_probability_of_zero_is_rounded_and_not_masked():
    p = Predictions.from_probs([[1.0, 0.0, 0.0], [0.2, 0.5, 0.3]], [0, 1])
    assert p.zero_probs == 2
    assert p.logits[0].tolist() == pytest.approx([0.0, -87.3365, -87.3365], abs=1e-4)
    mapped = p.map(CALIBRATORS["temperature"](classes=3, temperature=2.0))
    assert 0 < float(mapped.probs[0, 1]) < 1e-18
    assert Predictions([[0.0, -np.inf]], [0]).zero_probs == 0


def test_masked_logits_lie_below_others_of_any_size():
    for size in (0.0, 1.0, 1e31, 1e38):
        given = torch.tensor([[size, -size, -torch.inf]], dtype=torch.float64)
        masked = far_below(given)
        assert masked[0, :2].tolist() == given[0, :2].tolist()
        assert masked[0, 2] < -size
        assert torch.softmax(masked / 1e4, 1)[0, 2] == 0, size
