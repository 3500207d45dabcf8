"""The blend: the mean of probabilities, and which calibrators `select` puts into it."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, Blend, Identity, TemperatureScaling, select
from calibrant.calibrators import selection as module
from calibrant.calibrators.base import Fit
from calibrant.calibrators.blend import MOST_PARTS, blended
from calibrant.metrics import Difference

QUICK = ["identity", "temperature", "focal_temperature", "structured_vector", "vector", "irm"]


def tempered(n: int = 800, k: int = 4, seed: int = 0, shift: float = 0.0) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 4
    labels = (logits / 2 + generator.gumbel(size=(n, k))).argmax(1)
    return Predictions(logits + shift * np.linspace(-1, 1, k), labels)


@cache
def fitted(*names: str, k: int = 4) -> tuple:
    return tuple(CALIBRATORS[name].fit(tempered(k=k)) for name in names)


def of(*names: str, k: int = 4) -> Blend:
    return Blend(classes=k, parts=fitted(*names, k=k))


class TestABlend:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_the_mean_of_the_probabilities(self, dtype):
        parts = fitted(*CALIBRATORS)
        logits = torch.randn(300, 4, dtype=dtype) * 5
        found = Blend(classes=4, parts=parts)(logits)
        assert found.dtype == dtype
        mean = torch.stack([part(logits).double().exp() for part in parts]).mean(0)
        tolerance = 1e-14 if dtype == torch.float64 else 1e-6
        torch.testing.assert_close(found.double().exp(), mean, atol=tolerance, rtol=0)

    def test_is_exact_where_probabilities_vanish(self):
        blend = Blend(classes=2, parts=(Identity(classes=2), Identity(classes=2)))
        for dtype in (torch.float32, torch.float64):
            found = blend(torch.tensor([[1e4, 0.0]], dtype=dtype))
            torch.testing.assert_close(found, torch.tensor([[0.0, -1e4]], dtype=dtype))

    def test_is_never_worse_than_its_parts_are_on_average(self):
        parts = fitted("identity", "temperature", "vector", "irm")
        test = tempered(seed=5)
        for metric in (metrics.nll, metrics.brier):
            single = np.mean([metric(test.map(part)) for part in parts])
            assert metric(test.map(Blend(classes=4, parts=parts))) < single

    def test_of_one_is_that_one(self):
        (part,) = fitted("vector")
        logits = torch.randn(50, 4)
        torch.testing.assert_close(Blend(classes=4, parts=(part,))(logits), part(logits))
        assert blended([part]) is part

    def test_preserves_the_predicted_class_if_all_parts_do(self):
        keeping = of("identity", "temperature", "ensemble_temperature", "irm")
        assert keeping.keeps_argmax
        assert not of("identity", "vector").keeps_argmax
        for dtype in (torch.float32, torch.float64):
            logits = torch.randn(20_000, 4, dtype=dtype)
            logits *= torch.logspace(-2, 2, 20_000, dtype=dtype)[:, None]
            logits[:2000] = logits[:2000].round()
            logits[2000:3000] = 1 + logits[2000:3000] * torch.finfo(dtype).eps
            assert bool((keeping(logits).argmax(1) == logits.argmax(1)).all())

    def test_has_the_parameters_of_its_parts_and_is_differentiable(self):
        assert of("identity", "temperature", "vector").size == 0 + 1 + 8
        logits = torch.randn(20, 4, requires_grad=True)
        of("temperature", "vector")(logits)[:, 0].sum().backward()
        assert logits.grad.isfinite().all()
        assert logits.grad.abs().sum() > 0

    @pytest.mark.usefixtures("as_a_user_runs_it")
    def test_refuses_parts_that_do_not_belong_together(self):
        one, two = Identity(classes=2), Identity(classes=3)
        with pytest.raises(ValueError, match="must have its 2 classes, Identity has 3"):
            Blend(classes=2, parts=(one, two))
        with pytest.raises(ValueError, match="a blend cannot contain a blend"):
            Blend(classes=2, parts=(one, Blend(classes=2, parts=(one,))))
        for parts in ((), (one,) * (MOST_PARTS + 1)):
            with pytest.raises(ValueError, match=f"1 to {MOST_PARTS} parts, got {len(parts)}"):
                Blend(classes=2, parts=parts)


class TestTheOrigin:
    def test_is_that_of_the_parts(self):
        made = [
            TemperatureScaling(classes=2, temperature=1.0, origin=Fit(9, "a" * 64, *rest))
            for rest in [(True, 0.5), (False, 0.1, "no end"), (False, 0.2, "no end")]
        ]
        assert blended(made).origin == Fit(9, "a" * 64, False, 0.5, "no end")
        assert blended(made[:1] * 2).origin == Fit(9, "a" * 64, True, 0.5, "")

    def test_is_unknown_if_the_parts_have_not_the_same(self):
        one = TemperatureScaling(classes=2, temperature=1.0, origin=Fit(9, "a" * 64))
        two = TemperatureScaling(classes=2, temperature=1.0, origin=Fit(9, "b" * 64))
        assert blended([one, two]).origin is None
        assert blended([one, Identity(classes=2)]).origin is None


class TestTheBlendOfASelection:
    def test_averages_all_that_tie_fitted_to_all_examples(self):
        data = tempered()
        found = select(data, candidates=QUICK, folds=2, resamples=200)
        assert set(found.ties) >= {"temperature", "focal_temperature", "structured_vector"}
        assert "identity" not in found.ties
        probe = torch.randn(30, 4, dtype=torch.float64)
        probs = [CALIBRATORS[name].fit(data)(probe).exp() for name in found.ties]
        torch.testing.assert_close(found.blend(probe).exp(), torch.stack(probs).mean(0))
        assert found.blend.origin.sha256 == data.sha256

    def test_has_the_selected_calibrator_and_none_that_is_significantly_worse(self):
        for shift in (0.0, 1.0):
            found = select(tempered(400, shift=shift), candidates=QUICK[:5], folds=2, resamples=200)
            assert found.name in found.ties
            for each in found.candidates:
                gap, near = each.difference_to_best, each.score <= found.candidates[0].score * 1.01
                assert (each.name in found.ties) == (gap is None or (near and gap.low < 0))

    def test_is_the_selected_calibrator_without_ties(self):
        found = select(tempered(3000, shift=3.0), candidates=["identity", "temperature", "vector"])
        assert found.ties == ("vector",)
        assert found.blend is found.best

    def test_preserves_the_class_on_request(self):
        found = select(tempered(400), keep_argmax=True, folds=2)
        assert len(found.ties) > 1
        assert found.blend.keeps_argmax

    @pytest.mark.parametrize("names", [QUICK, ["temperature"]])
    def test_is_what_fitting_a_blend_gives(self, names, monkeypatch):
        data = tempered(300)
        found = select(data, candidates=names, folds=2)
        monkeypatch.setattr(module, "select", lambda given: found if given is data else None)
        blend = Blend.fit(data)
        assert isinstance(blend, Blend)
        assert len(blend.parts) == len(found.ties)
        torch.testing.assert_close(blend(data.logits), found.blend(data.logits))
        assert blend.origin == found.blend.origin


def test_every_part_is_fitted_to_all_examples_once_at_the_first_access(monkeypatch):
    data, calls = tempered(), Counter()
    for name in QUICK:

        def fit(cls, predictions, name=name, real=CALIBRATORS[name].fit):
            calls[name] += len(predictions) == len(data)
            return real(predictions)

        monkeypatch.setattr(CALIBRATORS[name], "fit", classmethod(fit))
    found = select(data, candidates=QUICK, folds=2, resamples=200)
    assert +calls == {found.name: 1}
    assert found.blend is found.blend
    assert len(found.ties) > 2
    assert +calls == dict.fromkeys(found.ties, 1)


def choose(scores: dict, lows: dict, sizes: dict | None = None) -> tuple:
    """Selected name and ties, given the lower ends of intervals."""
    order = sorted(scores, key=lambda name: scores[name])

    def gap(name, best):
        value = scores[name] - scores[best]
        return Difference(value, lows.get((name, best), value - 1), value + 1, 0.5)

    def gaps(best, others):
        return {name: gap(name, best) for name in others}

    sizes = sizes or dict.fromkeys(scores, 1)
    return module._choose(order, scores, sizes, gaps(order[0], order[1:]), gaps)


VECTOR_APART = {("vector", "temperature"): 0.001}


@pytest.mark.parametrize(
    ("scores", "lows", "sizes", "expected"),
    [
        # Within one percent of the score.
        ({"temperature": 1.0, "vector": 1.0099, "platt": 1.0101}, {}, None, "temperature vector"),
        # Not significantly worse.
        (
            {"temperature": 1.0, "vector": 1.001, "platt": 1.002},
            VECTOR_APART,
            None,
            "temperature platt",
        ),
        # Nonparametric ones tie, but are not selected while they lead by chance.
        ({"irm": 0.995, "temperature": 1.0, "vector": 1.004}, {}, None, "temperature irm vector"),
        ({"irm": 0.98, "temperature": 1.0, "vector": 1.004}, {}, None, "temperature vector"),
        # Differences are those to the parametric one.
        (
            {"irm": 0.995, "temperature": 1.0, "vector": 1.004},
            VECTOR_APART,
            None,
            "temperature irm",
        ),
        (
            {"irm": 0.995, "temperature": 1.0, "vector": 1.004},
            {("vector", "irm"): 0.001},
            None,
            "temperature irm vector",
        ),
        # A significantly better nonparametric one is selected.
        (
            {"irm": 0.995, "isotonic": 0.996, "temperature": 1.0},
            {("temperature", "irm"): 0.001},
            None,
            "irm isotonic",
        ),
        # The simplest within 0.2 percent is selected.
        (
            {"vector": 1.0, "structured_vector": 1.0019, "temperature": 1.0021},
            {},
            {"vector": 8, "structured_vector": 7, "temperature": 1},
            "structured_vector vector temperature",
        ),
    ],
)
def test_the_selected_one_and_its_ties(scores, lows, sizes, expected):
    chosen, *others = expected.split()
    name, ties = choose(scores, lows, sizes)
    assert name == chosen
    assert list(ties) == sorted([chosen, *others], key=lambda each: scores[each])
