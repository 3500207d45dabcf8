"""Changes of class priors: hand-worked numbers, planted priors, and files."""

import json

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    CALIBRATORS,
    Identity,
    PriorShift,
    SlicedCalibrator,
    TemperatureScaling,
    estimate_prior,
    load,
    save,
)
from calibrant.calibrators.blend import blended
from calibrant.calibrators.prior_estimation import constrained_solution, maximise_likelihood
from calibrant.calibrators.records import digest_of
from calibrant.data import SYNTHETIC
from calibrant.export import export_onnx

HALF = [0.5, 0.5]


def gaussians(n, prior, *, seed, source=None):
    """Examples of unit Gaussian classes, with logits that are exact for the source priors."""
    generator, prior = np.random.default_rng(seed), np.asarray(prior)
    centres = 1.5 * np.eye(len(prior))
    labels = generator.choice(len(prior), n, p=prior)
    x = centres[labels] + generator.normal(size=(n, len(prior)))
    logits = x @ centres.T + np.log(prior if source is None else source)
    return Predictions(logits, labels)


class TestPriorShift:
    def test_an_even_score_becomes_the_target_prior(self):
        # 0.8 : 0.2 of even priors, times 0.1 : 0.9, is 0.08 : 0.18.
        shift = PriorShift.of_priors(0.5, 0.9)
        probs = shift(torch.tensor([[0.5, 0.5], [0.8, 0.2]]).double().log()).exp()
        expected = [[0.1, 0.9], [0.08 / 0.26, 0.18 / 0.26]]
        torch.testing.assert_close(probs, torch.tensor(expected, dtype=torch.float64))

    def test_equal_priors_change_nothing_and_the_way_back_undoes_it(self):
        logits = torch.randn(200, 3, dtype=torch.float64) * 4
        source, target = [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]
        same, there = (PriorShift.of_priors(source, each) for each in (source, target))
        back = PriorShift.of_priors(target, source)
        torch.testing.assert_close(same(logits), logits.log_softmax(1))
        torch.testing.assert_close(back(there(logits)), logits.log_softmax(1))
        assert not torch.allclose(there(logits), same(logits))

    def test_has_the_posterior_of_the_target_where_the_source_is_calibrated(self):
        # The posterior of `tempered` is known; resampling labels changes its priors alone.
        sample = SYNTHETIC["tempered"].sample(200_000, seed=0)
        labels = sample.predictions.labels.numpy()
        keep = np.random.default_rng(1).random(len(labels)) < np.where(labels == 1, 0.1, 1.0)
        target = Predictions(sample.posterior.log(), labels).take(keep)
        before, shift = metrics.binary_ece(target), PriorShift.of_priors(0.5, 1 / 11)
        after = target.map(shift)
        # The noise of 15 bins of 110,000 examples is near 0.003.
        assert before > 0.15
        assert metrics.binary_ece(after) < 0.01
        assert float(after.positive_probs.mean()) == pytest.approx(1 / 11, abs=0.004)

    def test_follows_any_calibrator(self):
        p = gaussians(800, [0.5, 0.3, 0.2], seed=0)
        sharp = Predictions(3 * p.logits, p.labels)
        inside = TemperatureScaling.fit(sharp)
        shift = PriorShift.fit(sharp, target=[0.2, 0.2, 0.6], calibrator=inside)
        torch.testing.assert_close(shift.source, p.labels.bincount() / 800.0, check_dtype=False)
        expected = (inside(sharp.logits) + shift.log_ratio).log_softmax(1)
        torch.testing.assert_close(shift(sharp.logits), expected)
        assert shift.origin == inside.origin
        assert shift.size == 7
        assert "calibrator=(TemperatureScaling(" in repr(shift)
        assert shift._repr_html_()

    def test_masked_classes_stay_impossible_and_gradients_finite(self):
        shift = PriorShift.of_priors([0.2, 0.3, 0.5], [0.7, 0.2, 0.1])
        logits = torch.tensor([[0.3, -torch.inf, 1.0], [-torch.inf, 2.0, -torch.inf]])
        logits.requires_grad_()
        found = shift(logits)
        assert found[1].detach().tolist() == [-torch.inf, 0.0, -torch.inf]
        odds = float((found[0, 0] - found[0, 2]).detach())
        assert odds == pytest.approx(-0.7 + np.log(0.7 / 0.2) - np.log(0.1 / 0.5), abs=1e-6)
        found[0, 0].backward()
        assert logits.grad.isfinite().all()

    def test_probabilities_of_zero_get_the_floor_of_the_fit(self):
        generator = np.random.default_rng(0)
        votes = generator.multinomial(8, [0.6, 0.3, 0.1], 500) / 8
        data = Predictions.from_probs(votes, (votes + generator.gumbel(size=votes.shape)).argmax(1))
        with pytest.warns(UserWarning, match="are exactly 0"):
            inside = TemperatureScaling.fit(data)
        shift = PriorShift.of_priors([0.6, 0.3, 0.1], [0.1, 0.3, 0.6], calibrator=inside)
        assert shift.zero_floor == inside.zero_floor
        expected = data.map(inside).logits + shift.log_ratio
        torch.testing.assert_close(data.map(shift).logits, expected.log_softmax(1))

    def test_priors_may_be_given_by_class_name(self):
        p = Predictions([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]], [0, 1, 2], class_names=["a", "b", "c"])
        shift = PriorShift.fit(p, target={"c": 0.5, "a": 0.2})
        assert shift.target.tolist() == pytest.approx([0.2, 0.3, 0.5])
        assert shift.calibrator.origin.class_names == ("a", "b", "c")

    @pytest.mark.parametrize("inside", ["temperature", "matrix", "isotonic", "blend"])
    def test_is_saved_with_the_calibrator_inside(self, inside, tmp_path):
        p = gaussians(600, [0.5, 0.3, 0.2], seed=0)
        names = ["temperature", "vector"] if inside == "blend" else [inside]
        calibrator = blended([CALIBRATORS[name].fit(p) for name in names])
        shift = PriorShift.fit(p, target=[0.1, 0.2, 0.7], calibrator=calibrator)
        save(shift, tmp_path / "cal.json")
        found = load(tmp_path / "cal.json")
        assert isinstance(found, PriorShift)
        assert type(found.calibrator) is type(calibrator)
        assert found.origin == shift.origin
        torch.testing.assert_close(found(p.logits), shift(p.logits), rtol=1e-12, atol=1e-12)
        export_onnx(found, tmp_path / "cal.onnx")
        assert (tmp_path / "cal.onnx").exists()


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_files_with_other_things_inside_are_refused(tmp_path):
    path = tmp_path / "cal.json"
    save(PriorShift.of_priors(0.5, 0.1), path)
    good = json.loads(path.read_text())
    inside = good["parameters"]["calibrator"]
    for change, words in (
        ({"method": "prior_shift"}, "prior_shift cannot be inside prior_shift"),
        ({"method": "sliced"}, "sliced cannot be inside prior_shift"),
        ({"method": "blend"}, "parameters has no 'parts'"),
        ({"method": "temprature"}, "did you mean temperature?"),
        ({"more": 1}, "unknown key 'more' in calibrator"),
    ):
        record = good | {"parameters": good["parameters"] | {"calibrator": inside | change}}
        path.write_text(json.dumps(record | {"sha256": digest_of(record)}))
        with pytest.raises(ValueError, match=words):
            load(path)


THREE = torch.full((3,), 1 / 3, dtype=torch.float64)
P = gaussians(60, [0.4, 0.3, 0.3], seed=0)
REFUSED = {
    "zero": (lambda: PriorShift.of_priors(HALF, [0.0, 1.0]), "target must be positive .* class 0"),
    "NaN": (lambda: PriorShift.of_priors(HALF, np.nan), "target must be positive"),
    "sum": (lambda: PriorShift.of_priors(HALF, [0.5, 0.6]), "target must sum to 1, got 1.1"),
    "one number": (
        lambda: PriorShift.of_priors(THREE, 0.1),
        "target must be 3 numbers, one for each class; got one",
    ),
    "shape": (lambda: PriorShift.fit(P, target=HALF), r"got shape \(2,\)"),
    "name": (lambda: PriorShift.fit(P, target={"cat": 0.1}), "target: no class 'cat'"),
    "names": (lambda: PriorShift.fit(P, target={"0": 0.1}), "has no number for class '1'"),
    "neither": (lambda: PriorShift.fit(P), "pass either target="),
    "both": (lambda: PriorShift.fit(P, target=THREE, unlabelled=P), "pass either target="),
    "absent class": (
        lambda: PriorShift.fit(Predictions([[1.0, 0, 0]] * 2, [0, 1]), target=THREE),
        "source must be positive for every class, got 0 for class 2",
    ),
    "nested": (
        lambda: PriorShift.of_priors(HALF, HALF, calibrator=PriorShift.of_priors(HALF, HALF)),
        "PriorShift follows a calibrator of logits alone, not PriorShift",
    ),
    "sliced": (
        lambda: PriorShift.of_priors(
            THREE, THREE, calibrator=SlicedCalibrator.fit(P, np.arange(60) % 2)
        ),
        "not SlicedCalibrator",
    ),
    "classes": (
        lambda: PriorShift(
            classes=3, source=THREE, target=THREE, calibrator=Identity(classes=2)
        ),
        "priors are of 3 classes, Identity has 2",
    ),
    "method": (lambda: estimate_prior(P, P, method="bbs"), "no method 'bbs'; did you mean bbse?"),
    "labels": (lambda: estimate_prior(P, THREE, method="bbse"), "bbse needs labelled predictions"),
    "other classes": (
        lambda: estimate_prior(P, gaussians(60, HALF, seed=0)),
        "source has 2 classes, the unlabelled examples 3",
    ),
    "no information": (
        lambda: estimate_prior(Predictions(torch.zeros(9, 3), torch.zeros(9).long()), P),
        "scores of all examples are equal",
    ),
    "never predicted": (
        lambda: estimate_prior(P, Predictions(P.logits - torch.tensor([99.0, 0, 0]), P.labels),
                               method="bbse"),
        "condition number .* use em",
    ),
    "level": (lambda: estimate_prior(P, P, level=2), "level must lie strictly between 0 and 1"),
}  # fmt: skip


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_priors_are_refused_in_one_line(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


class TestEM:
    def test_one_step_worked_by_hand(self):
        # Of even source priors, 0.8 and 0.4 for class 1; the first step is their mean.
        # The second: 0.48 / (0.48 + 0.2 * 0.4) = 6 / 7, and 0.24 / (0.24 + 0.6 * 0.4) = 1 / 2.
        ratios = np.array([[0.2, 0.8], [0.6, 0.4]]) / 0.5
        for steps, expected in ((1, 0.6), (2, (6 / 7 + 1 / 2) / 2)):
            prior, _ = maximise_likelihood(ratios, np.ones(2), np.array(HALF), steps=steps)
            assert prior[1] == pytest.approx(expected, abs=1e-12)

    def test_equals_a_naive_loop_and_the_likelihood_rises_at_every_step(self):
        p = gaussians(300, [0.2, 0.5, 0.3], seed=3, source=[1 / 3] * 3)
        probs, prior, likelihoods = p.probs.numpy(), [1 / 3] * 3, []
        for _ in range(400):
            sums, total = [0.0] * 3, 0.0
            for row in probs:
                joint = [row[k] * prior[k] / (1 / 3) for k in range(3)]
                total += np.log(sum(joint))
                sums = [sums[k] + joint[k] / sum(joint) for k in range(3)]
            likelihoods.append(total)
            prior = [each / 300 for each in sums]
        assert (np.diff(likelihoods) > -1e-9).all()
        found = estimate_prior(p, THREE, resamples=0)
        assert found.prior.tolist() == pytest.approx(prior, abs=1e-4)
        assert found.low is None
        # Nothing nearby has a higher likelihood.
        ratios = probs * 3
        best = np.log(ratios @ found.prior.numpy()).mean()
        for move in ([1, -1, 0], [-1, 1, 0], [0, 1, -1], [0, -1, 1]):
            other = found.prior.numpy() + 0.01 * np.array(move)
            assert np.log(ratios @ other).mean() < best

    def test_an_even_mixture_of_the_source_gives_its_own_prior(self):
        # Scores whose mean is the source prior are a fixed point.
        p = Predictions.from_probs([[0.9, 0.1], [0.1, 0.9]], [0, 0])
        assert estimate_prior(p, HALF, resamples=0).prior.tolist() == pytest.approx(HALF)

    def test_says_when_it_did_not_converge(self, monkeypatch):
        monkeypatch.setattr("calibrant.calibrators.prior_estimation.STEPS", 3)
        p = gaussians(300, [0.9, 0.1], seed=0, source=HALF)
        with pytest.warns(UserWarning, match="EM did not converge in 3 steps"):
            estimate_prior(p, HALF, resamples=0)

    def test_weights_count_as_repeated_examples(self):
        p = gaussians(200, [0.8, 0.2], seed=0, source=HALF)
        weights = np.random.default_rng(0).integers(0, 3, 200)
        repeated = p.take(np.repeat(np.arange(200), weights))
        found = [estimate_prior(each, HALF, resamples=0).prior for each in
                 (p.reweighted(weights), repeated)]  # fmt: skip
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)

    def test_miscalibrated_scores_mislead_it_and_calibrated_ones_do_not(self):
        val = gaussians(4000, HALF, seed=0)
        new = gaussians(4000, [0.9, 0.1], seed=1, source=HALF)
        sharp_val, sharp_new = (Predictions(3 * p.logits, p.labels) for p in (val, new))
        scaling = TemperatureScaling.fit(sharp_val)
        raw = estimate_prior(sharp_new, sharp_val, resamples=0).prior
        shift = PriorShift.fit(sharp_val, unlabelled=sharp_new, calibrator=scaling)
        truth = float(new.labels.double().mean())
        assert abs(float(shift.target[1]) - truth) < 0.02
        assert abs(float(raw[1]) - truth) > 0.03


@pytest.mark.parametrize("method", ["em", "bbse", "bbse_soft"])
class TestEveryMethod:
    def test_recovers_planted_priors_within_its_interval(self, method):
        source, target = [0.4, 0.3, 0.3], [0.15, 0.6, 0.25]
        val = gaussians(6000, source, seed=0)
        new = gaussians(6000, target, seed=1, source=source)
        found = estimate_prior(new, val, method=method, level=0.999)
        assert found.prior.tolist() == pytest.approx(target, abs=0.05)
        assert (found.low < torch.tensor(target)).all()
        assert (found.high > torch.tensor(target)).all()
        assert float((found.high - found.low).max()) < 0.2

    def test_calibrates_the_target(self, method):
        source, target = [0.4, 0.3, 0.3], [0.15, 0.75, 0.1]
        val = gaussians(6000, source, seed=0)
        new = gaussians(6000, target, seed=1, source=source)
        shift = PriorShift.fit(val, unlabelled=new, method=method)
        assert metrics.nll(new.map(shift)) < 0.9 * metrics.nll(new)
        truth = PriorShift.of_priors(source, target)
        assert metrics.nll(new.map(shift)) == pytest.approx(metrics.nll(new.map(truth)), abs=0.01)

    def test_a_class_that_is_absent_keeps_a_small_positive_prior(self, method):
        val = gaussians(3000, [0.4, 0.3, 0.3], seed=0)
        new = val.take(val.labels < 2).take(np.arange(500))
        found = estimate_prior(new, val, method=method, resamples=0)
        assert float(found.prior.min()) >= 1 / 1003 / 1.01
        assert float(found.prior[2]) < 0.05

    def test_the_same_seed_gives_the_same_interval_and_groups_widen_it(self, method):
        val = gaussians(1000, HALF, seed=0)
        new = gaussians(400, [0.8, 0.2], seed=1, source=HALF)
        copies = new.take(np.repeat(np.arange(400), 5))
        grouped = Predictions(copies.logits, copies.labels, groups=np.repeat(np.arange(400), 5))
        one, two, wide = (
            estimate_prior(each, val, method=method) for each in (copies, copies, grouped)
        )
        torch.testing.assert_close(one.low, two.low, rtol=1e-9, atol=1e-12)
        assert float(wide.high[1] - wide.low[1]) > 1.2 * float(one.high[1] - one.low[1])


@pytest.mark.slow
def test_intervals_of_em_cover_the_true_prior():
    covered = 0
    for seed in range(200):
        new = gaussians(500, [0.8, 0.2], seed=seed, source=HALF)
        found = estimate_prior(new, HALF, resamples=100, seed=seed)
        covered += float(found.low[1]) <= 0.2 <= float(found.high[1])
    # 95 % of 200 are 190, with a standard deviation of 3.
    assert 178 <= covered <= 199


@pytest.mark.parametrize("labelled", [True, False])
def test_intervals_of_em_include_the_sampling_of_the_source(labelled):
    even, target = [1 / 3] * 3, torch.tensor([0.7, 0.2, 0.1])
    covered = torch.zeros(3)
    for seed in range(60):
        val = gaussians(500, even, seed=seed)
        new = gaussians(3000, target.double() / target.double().sum(), seed=seed + 60, source=even)
        shares = val.labels.bincount() / 500.0
        given = {} if labelled else {"source_examples": 500}
        found = estimate_prior(new, val if labelled else shares, resamples=100, seed=seed, **given)
        covered += (found.low <= target) & (target <= found.high)
    # 95 % of 60 are 57; without the source it was about 42.
    assert covered.min() >= 51


def test_the_number_of_examples_belongs_to_priors():
    p = gaussians(100, HALF, seed=0)
    with pytest.raises(ValueError, match="source_examples is a positive number, for a source that"):
        estimate_prior(p, p, source_examples=100)


def test_black_box_estimates_invert_the_confusion_matrix():
    # Of class 0, 80 % are predicted as such, of class 1, 70 %; 38 % of predictions are class 1.
    confusion = np.array([[0.8, 0.3], [0.2, 0.7]])
    assert constrained_solution(confusion, np.array([0.62, 0.38])) == pytest.approx([0.64, 0.36])
    # Fewer predictions than even class 0 alone explains: at the edge of the simplex.
    assert constrained_solution(confusion, np.array([0.9, 0.1])) == pytest.approx([1, 0], abs=1e-9)


def test_constrained_estimates_are_the_best_of_all_priors():
    generator = np.random.default_rng(0)
    grid = [(i, j, 60 - i - j) for i in range(61) for j in range(61 - i)]
    grid = np.array(grid) / 60
    for _ in range(20):
        confusion = generator.dirichlet(np.ones(3), 3).T
        means = generator.dirichlet(0.3 * np.ones(3))
        found = constrained_solution(confusion, means)
        assert found.sum() == pytest.approx(1)
        assert found.min() >= 0
        best = np.square(grid @ confusion.T - means).sum(1).min()
        assert np.square(confusion @ found - means).sum() <= best + 1e-12


def test_an_ill_conditioned_confusion_matrix_is_a_warning():
    p = gaussians(2000, HALF, seed=0)
    vague = Predictions(0.002 * p.logits, p.labels)
    with pytest.warns(UserWarning, match="confusion matrix has condition number"):
        estimate_prior(vague, vague, method="bbse_soft", resamples=0)


def test_an_estimate_prints_its_priors_with_intervals():
    p = gaussians(300, HALF, seed=0)
    named = Predictions(p.logits, p.labels, class_names=["no", "yes"])
    found = estimate_prior(named, 0.5)
    assert repr(found).startswith("PriorEstimate(0.")
    html = found._repr_html_()
    assert "yes" in html
    assert f"{float(found.prior[1]):.4f}" in html
    assert f"[{float(found.low[1]):.4f}, {float(found.high[1]):.4f}]" in html
    assert "95 % interval" in html
