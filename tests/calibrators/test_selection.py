"""Selection: held-out scores, folds, ties, reasons for skipped candidates; and its blend."""

import warnings
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    CALIBRATORS,
    Blend,
    Identity,
    TemperatureScaling,
    select,
    selection,
)
from calibrant.calibrators.base import Fit
from calibrant.calibrators.blend import MOST_PARTS, blended
from calibrant.calibrators.selection import fold_of
from calibrant.calibrators.stacking import log_weights

QUICK = ["identity", "temperature", "vector", "structured_vector"]
MORE = ["identity", "temperature", "focal_temperature", "structured_vector", "vector", "irm"]


def tempered(n: int = 1500, seed: int = 0, k: int = 4, shift: float = 0.0, **extras) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 4
    labels = (logits / 2 + generator.gumbel(size=(n, k))).argmax(1)
    return Predictions(logits + shift * np.linspace(-1, 1, k), labels, **extras)


@cache
def quick_selection() -> selection.Selection:
    return select(tempered(), candidates=QUICK, folds=2, resamples=200)


@cache
def fitted(*names: str) -> tuple:
    return tuple(CALIBRATORS[name].fit(tempered(800)) for name in names)


def test_scores_are_those_of_fits_that_did_not_see_the_examples():
    data = tempered()
    found = select(data, candidates=["temperature"], folds=3, seed=4)
    fold = fold_of(data, folds=3, seed=4)
    by_hand = np.empty(len(data))
    for number in range(3):
        fitted = CALIBRATORS["temperature"].fit(data.take(fold != number))
        part = data.take(fold == number).map(fitted)
        by_hand[fold == number] = -part.example_stats.label_log_prob.numpy()
    assert found.candidates[0].score == pytest.approx(by_hand.mean(), rel=1e-12)


def test_the_candidate_of_the_largest_weight_is_selected_and_fitted_to_all_examples():
    found, data = quick_selection(), tempered()
    assert found.name == "structured_vector"
    first = found.candidates[0]
    if first.name != found.name:
        why = f"selected: structured_vector, of a larger prior weight than {first.name} (nll "
        assert found.verdict.startswith(why)
    weights = log_weights({e.name: e.score for e in found.candidates}, examples=1500)
    assert found.name == max(weights, key=weights.get)
    assert (found.best.origin.examples, found.best.origin.sha256) == (len(data), data.sha256)
    probe = torch.randn(5, 4)
    torch.testing.assert_close(found.best(probe), CALIBRATORS[found.name].fit(data)(probe))


def test_a_calibrator_needs_no_prior_weight_where_others_cannot_correct_the_errors():
    # Half of the most confident predictions are wrong: no temperature can correct this.
    data = tempered(4000)
    sure = data.confidence > 0.99
    labels = torch.where(
        sure & (torch.arange(4000) % 2 == 0), (data.predicted + 1) % 4, data.labels
    )
    few = [
        select(tempered(400, seed), candidates=["temperature", "irm"], folds=2).name
        for seed in range(3)
    ]
    assert few == ["temperature"] * 3
    found = select(Predictions(data.logits, labels), candidates=["temperature", "irm"], folds=2)
    assert found.name == "irm"


def test_a_real_difference_is_not_a_tie():
    found = select(tempered(3000, shift=3.0), candidates=QUICK, folds=2, resamples=200)
    assert found.name in ("vector", "structured_vector")
    gaps = {each.name: each.difference_to_best for each in found.candidates}
    assert gaps["temperature"].low > 0
    assert gaps[found.candidates[0].name] is None
    assert [row.score for row in found.candidates] == sorted(row.score for row in found.candidates)
    alone = select(tempered(3000, shift=3.0), candidates=QUICK[:3], folds=3, resamples=200)
    assert {each.name: each.dropped for each in alone.candidates} == {
        "vector": False, "identity": False, "temperature": True,
    }  # fmt: skip
    assert alone.parts == ("vector",)
    assert "dropped after two folds" in str(alone)


def test_candidates_that_cannot_be_fitted_are_skipped_with_the_reason():
    found = select(tempered(60, k=10), candidates=["temperature", "matrix"], folds=3)
    assert "need at least 110 examples" in found.skipped["matrix"]
    assert "matrix: a 10 x 10 matrix" in str(found)
    with pytest.raises(ValueError, match="no calibrator could be fitted: a 10 x 10"):
        select(tempered(60, k=10), candidates=["matrix"], folds=3)


def test_only_those_that_preserve_the_class_on_request():
    found = select(tempered(400), preserve_class=True, folds=2)
    keeping = {name for name, kind in CALIBRATORS.items() if kind.keeps_argmax}
    assert {row.name for row in found.candidates} == keeping
    assert len(found.parts) > 1
    assert found.blend.keeps_argmax


@pytest.mark.parametrize("criterion", ["nll", "brier"])
def test_ranks_by_the_criterion(criterion):
    found = select(tempered(300), candidates=["identity", "temperature"], criterion=criterion)
    assert found.criterion == criterion
    assert found.candidates[0].score < metrics.METRICS[criterion](tempered(300))


def test_invalid_settings_of_a_selection_are_refused():
    with pytest.raises(ValueError, match=r"criterion must be a proper score.*got 'ece'"):
        select(tempered(100), criterion="ece")
    with pytest.raises(ValueError, match="no calibrator 'temprature'; did you mean temperature"):
        select(tempered(100), candidates=["temprature"])
    with pytest.raises(ValueError, match="at least one calibrator that preserves the predicted"):
        select(tempered(100), candidates=["vector"], preserve_class=True)
    with pytest.raises(ValueError, match=r"no candidates: name at least one calibrator$"):
        select(tempered(100), candidates=[])
    with pytest.raises(ValueError, match="cannot fit: labels hold a single class, 1"):
        select(Predictions(torch.randn(50, 3), torch.ones(50).long()))
    assert select(tempered(100), candidates="temperature", folds=2).name == "temperature"


def test_progress_is_called_once_for_each_fold_of_each_candidate():
    calls = []
    select(tempered(200), candidates=QUICK[:2], folds=4, progress=lambda: calls.append(1))
    assert len(calls) == 8


class TestFolds:
    def test_hold_the_same_share_of_every_class(self):
        data = tempered(1000)
        fold = fold_of(data, folds=4, seed=0)
        for label in range(4):
            counts = np.bincount(fold[data.labels.numpy() == label], minlength=4)
            assert counts.max() - counts.min() <= 1

    def test_keep_groups_together_and_are_about_equal(self):
        data = tempered(1000, groups=np.arange(1000) // 20)
        fold = fold_of(data, folds=5, seed=0)
        assert all(len(set(fold[start : start + 20])) == 1 for start in range(0, 1000, 20))
        assert np.bincount(fold).min() >= 160

    def test_are_never_empty_however_uneven_the_groups(self):
        groups = np.r_[np.zeros(95), 1, 2, 3, 4, 5]
        fold = fold_of(tempered(100, groups=groups), folds=3, seed=0)
        assert set(fold) == {0, 1, 2}

    @pytest.mark.parametrize("folds", [0, 1, 101])
    def test_more_than_examples_or_fewer_than_two_are_refused(self, folds):
        with pytest.raises(ValueError, match="folds must lie between 2 and the 100 examples"):
            fold_of(tempered(100), folds=folds, seed=0)


def test_prints_as_a_table_and_as_plain_values():
    found = select(tempered(300), candidates=QUICK[:2], folds=2)
    lines = str(found).splitlines()
    assert lines[0] == "2 folds, ranked by nll on held-out examples"
    assert lines[-1] == f"selected: {found.name}, the best nll"
    assert lines[1].split()[-1] == "weight"
    for line, each in zip(lines[2:], found.candidates, strict=False):
        assert line.startswith(f"{each.name:24} {each.score:8.4f}")
        if each.name in found.weights:
            assert line.endswith(f" {found.weights[each.name][0]:.0%}")
    frame = found.to_pandas()
    assert frame["weight"].sum() == pytest.approx(1)
    plain = found.to_dict()
    assert plain["chosen"] == found.name
    assert [row["name"] for row in plain["candidates"]] == [row.name for row in found.candidates]
    assert [each["name"] for each in plain["parts"]] == list(found.parts)


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
        test = tempered(800, 5)
        for metric in (metrics.nll, metrics.brier):
            single = np.mean([metric(test.map(part)) for part in parts])
            assert metric(test.map(Blend(classes=4, parts=parts))) < single

    def test_of_one_is_that_one(self):
        (part,) = fitted("vector")
        logits = torch.randn(50, 4)
        torch.testing.assert_close(Blend(classes=4, parts=(part,))(logits), part(logits))
        assert blended([part]) is part

    def test_preserves_the_predicted_class_if_all_parts_do(self):
        keeping = Blend(
            classes=4, parts=fitted("identity", "temperature", "ensemble_temperature", "irm")
        )
        assert keeping.keeps_argmax
        assert not Blend(classes=4, parts=fitted("identity", "vector")).keeps_argmax
        for dtype in (torch.float32, torch.float64):
            logits = torch.randn(20_000, 4, dtype=dtype)
            logits *= torch.logspace(-2, 2, 20_000, dtype=dtype)[:, None]
            logits[:2000] = logits[:2000].round()
            logits[2000:3000] = 1 + logits[2000:3000] * torch.finfo(dtype).eps
            assert bool((keeping(logits).argmax(1) == logits.argmax(1)).all())

    def test_has_the_parameters_of_its_parts_and_is_differentiable(self):
        blend = Blend(classes=4, parts=fitted("identity", "temperature", "vector"))
        assert blend.size == 0 + 1 + 8
        logits = torch.randn(20, 4, requires_grad=True)
        blend(logits)[:, 0].sum().backward()
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

    def test_has_the_origin_of_parts_that_have_the_same(self):
        made = [
            TemperatureScaling(classes=2, temperature=1.0, origin=Fit(9, "a" * 64, *rest))
            for rest in [(True, 0.5), (False, 0.1, "no end"), (False, 0.2, "no end")]
        ]
        assert blended(made).origin == Fit(9, "a" * 64, False, 0.5, "no end")
        assert blended(made[:1] * 2).origin == Fit(9, "a" * 64, True, 0.5, "")
        other = TemperatureScaling(classes=2, temperature=1.0, origin=Fit(9, "b" * 64))
        for part in (other, Identity(classes=2)):
            assert blended([made[0], part]).origin is None


def test_a_blend_is_fitted_to_all_examples_once_at_the_first_access(monkeypatch):
    data, calls = tempered(800), Counter()
    for name in MORE:

        def fit(cls, predictions, name=name, real=CALIBRATORS[name].fit):
            calls[name] += len(predictions) == len(data)
            return real(predictions)

        monkeypatch.setattr(CALIBRATORS[name], "fit", classmethod(fit))
    found = select(data, candidates=MORE, folds=2, resamples=200)
    calls.pop("identity")  # needs no fit
    assert +calls == {found.name: 1}
    assert found.blend is found.blend
    calls.pop("identity", None)
    assert +calls == dict.fromkeys({*found.parts, found.name} - {"identity"}, 1)
    assert set(found.parts) >= {"temperature", "focal_temperature", "structured_vector"}
    assert found.blend.origin.sha256 == data.sha256
    probe = torch.randn(30, 4, dtype=torch.float64)
    parts = torch.stack([CALIBRATORS[name].fit(data)(probe) for name in found.parts])
    weights, exponents = (
        torch.tensor(each)[:, None, None] for each in zip(*found.weights.values(), strict=True)
    )
    mean = (weights * parts.exp()).sum(0)
    pool = torch.softmax((exponents * parts).sum(0), 1)
    torch.testing.assert_close(found.blend(probe).exp(), (mean + pool) / 2, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("names", [["identity"], ["identity", "temperature"]])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_blend_of_predictions_that_mislead_has_no_pool(names):
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(400, 2))
    misled = Predictions(logits, (generator.gumbel(size=(400, 2)) - logits).argmax(1))
    found = select(misled, candidates=names)
    assert set(found.parts) == {"identity"}
    torch.testing.assert_close(found.blend(misled.logits), misled.log_probs)


@pytest.mark.parametrize("names", [MORE, ["temperature"]])
def test_fitting_a_blend_gives_that_of_a_selection(names, monkeypatch):
    data = tempered(300)
    found = select(data, candidates=names, folds=2)
    monkeypatch.setattr(selection, "select", lambda given: found if given is data else None)
    blend = Blend.fit(data)
    assert isinstance(blend, Blend)
    assert len(blend.parts) == len(found.parts)
    torch.testing.assert_close(blend(data.logits), found.blend(data.logits))
    assert blend.origin == found.blend.origin


SCORES = {"vector": 1.0, "temperature": 1.0019, "platt": 1.005}
CHOICES = {
    "the largest weight": (SCORES, {"platt": 1.0}, "", "platt"),
    "not one that did not converge": (SCORES, {"vector": 1.0}, "vector", "temperature"),
    "of the converged ones the largest weight": (
        SCORES,
        {"vector": 2.0, "platt": 1.0},
        "vector",
        "platt",
    ),
    "one that did not converge if no other is within 0.2 percent": (
        {"vector": 1.0, "temperature": 1.0021},
        {"vector": 1.0},
        "vector",
        "vector",
    ),
}


@pytest.mark.parametrize(
    ("scores", "weights", "unconverged", "expected"), CHOICES.values(), ids=CHOICES
)
def test_selection_by_weight_and_convergence(scores, weights, unconverged, expected):
    weights = {name: weights.get(name, -score) for name, score in scores.items()}
    converged = {name: name not in unconverged.split() for name in scores}
    assert selection._choose(scores, weights, converged) == expected


def test_a_winner_at_its_bound_is_marked_everywhere():
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=90)
    sure = Predictions(np.eye(3)[labels] + generator.normal(size=(90, 3)) / 20, labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = select(sure, candidates=["identity", "temperature"], folds=3)
    assert any("T hit the lower bound" in str(each.message) for each in caught)
    remark = "temperature did not converge, but no converged calibrator has as good a nll"
    assert any(str(each.message) == remark for each in caught)
    assert (found.name, found.remarks) == ("temperature", (remark,))
    assert found.verdict == "selected: temperature, the best nll, although it did not converge"
    assert [each.converged for each in found.candidates] == [False, True]
    assert "did not converge" in str(found).splitlines()[2]
    assert found.to_dict()["candidates"][0]["converged"] is False
    assert found.to_dict()["remarks"] == [remark]
    assert "<td>no</td>" in found._repr_html_()
    assert repr(found.best).endswith("classes=3, converged=False)")


def test_a_fit_to_all_examples_that_does_not_converge_is_replaced(monkeypatch):
    names = ["temperature", "focal_temperature"]
    first = select(tempered(), candidates=names, folds=2).name
    (other,) = set(names) - {first}
    original = CALIBRATORS[first].fit.__func__

    def fit(cls, predictions):
        made = original(cls, predictions)
        failed = Fit(len(predictions), predictions.sha256, False, 0.0, "stopped")
        return replace(made, origin=failed) if len(predictions) == 1500 else made

    monkeypatch.setattr(CALIBRATORS[first], "fit", classmethod(fit))
    found = select(tempered(), candidates=names, folds=2)
    assert found.name == other
    words = f"selected: {other}; {first} did not converge (nll difference "
    assert found.verdict.startswith(words) or found.candidates[0].name == other
    assert {each.name: each.converged for each in found.candidates}[first] is False
    assert found.remarks == ()


def test_pixels_of_few_images_count_by_how_much_they_say():
    """Thirty images of pixels that are independent within an image say as much as all pixels."""
    pixels = tempered(3000)
    data = Predictions(pixels.logits, pixels.labels, groups=np.arange(3000) % 30)
    names = ["identity", "temperature"]
    assert select(pixels, candidates=names).name == "temperature"
    found = select(data, candidates=names)
    assert found.name == "temperature"
    # Copies of one pixel in each image say as much as one of them.
    same = tempered(30)
    copies = torch.arange(3000) % 30
    data = Predictions(same.logits[copies], same.labels[copies], groups=copies)
    assert select(data, candidates=names).name == select(same, candidates=names).name == "identity"


def test_the_criterion_decides_the_weights_of_the_blend():
    data, names = tempered(1500, shift=1.0), ["identity", "temperature", "vector"]
    for criterion in ("nll", "brier"):
        found = select(data, candidates=names, criterion=criterion)
        scores = {each.name: each.score for each in found.candidates if not each.dropped}
        given = log_weights(scores, examples=1500)
        total = sum(np.exp(each) for each in given.values())
        for name, (weight, _) in found.weights.items():
            assert weight == pytest.approx(np.exp(given[name]) / total, abs=0.02)


def test_no_calibration_is_not_compared_with_itself():
    """A probability of 0 counts differently in folds and in all examples."""
    generator = np.random.default_rng(2)
    probs = generator.multinomial(10, [0.5, 0.5], size=300) / 10
    probs[:30] = [1.0, 0.0]
    labels = (generator.random(300) < probs[:, 1]).astype(int)
    labels[0] = 1
    found = select(Predictions.from_probs(probs, labels), candidates=["identity"])
    assert found.remarks == ()


def test_a_selection_that_is_worse_than_no_calibration_warns():
    data = tempered(300).map(TemperatureScaling(classes=4, temperature=2.0))
    with pytest.warns(UserWarning, match=r"nll of histogram on held-out folds is worse than with"):
        found = select(data, candidates=["histogram"], folds=2)
    assert len(found.remarks) == 1


def test_a_selection_as_a_data_frame_and_in_a_notebook():
    found = quick_selection()
    frame = found.to_pandas()
    assert list(frame.index) == [each.name for each in found.candidates]
    assert frame.index[frame["selected"]].tolist() == [found.name]
    assert frame["nll"].is_monotonic_increasing
    assert frame["converged"].all()
    html = found._repr_html_()
    assert html.count("<tr>") == 1 + len(QUICK)
    assert found.verdict in html
