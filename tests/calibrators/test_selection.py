"""Selection: held-out scores, folds, ties, reasons for skipped candidates."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, select
from calibrant.calibrators.selection import fold_of

QUICK = ["identity", "temperature", "vector", "structured_vector"]


def tempered(n: int = 1500, k: int = 4, seed: int = 0, **extras) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 4
    return Predictions(logits, (logits / 2 + generator.gumbel(size=(n, k))).argmax(1), **extras)


def biased(n: int = 3000, k: int = 4) -> Predictions:
    data = tempered(n, k)
    return Predictions(data.logits + torch.linspace(-3, 3, k), data.labels)


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


def test_the_selected_calibrator_is_fitted_to_all_examples():
    data = tempered()
    found = select(data, candidates=QUICK, folds=2, resamples=200)
    assert found.best.origin.examples == len(data)
    assert found.best.origin.sha256 == data.sha256
    probe = torch.randn(5, 4)
    torch.testing.assert_close(found.best(probe), CALIBRATORS[found.name].fit(data)(probe))


def test_the_simplest_of_tied_candidates_is_selected():
    found = select(tempered(), candidates=QUICK, folds=2, resamples=200)
    assert found.name == "temperature"
    if found.candidates[0].name != "temperature":
        assert "temperature, which is simpler and not significantly worse than" in found.verdict


def test_a_real_difference_is_not_a_tie():
    found = select(biased(), candidates=QUICK, folds=2, resamples=200)
    assert found.name in ("vector", "structured_vector")
    gaps = {each.name: each.difference_to_best for each in found.candidates}
    assert gaps["temperature"].low > 0
    assert gaps[found.candidates[0].name] is None
    assert [row.score for row in found.candidates] == sorted(row.score for row in found.candidates)


def test_a_nonparametric_one_is_selected_only_if_significantly_better(monkeypatch):
    names = [name for name, kind in CALIBRATORS.items() if kind.nonparametric]
    assert names == ["isotonic", "irm", "histogram"]
    # Few examples of a model that needs a temperature only.
    for seed in range(3):
        found = select(tempered(400, seed=seed), candidates=["temperature", "irm"], folds=2)
        assert found.name == "temperature"
    # No temperature can correct this: half of the most confident predictions are wrong.
    data = tempered(4000)
    sure = data.confidence > 0.99
    labels = torch.where(
        sure & (torch.arange(4000) % 2 == 0), (data.predicted + 1) % 4, data.labels
    )
    found = select(Predictions(data.logits, labels), candidates=["temperature", "irm"], folds=2)
    assert found.name == "irm"


def test_candidates_that_cannot_be_fitted_are_skipped_with_the_reason():
    found = select(tempered(60, 10), candidates=["temperature", "matrix"], folds=3)
    assert "need at least 110 examples" in found.skipped["matrix"]
    assert "matrix: a 10 x 10 matrix" in str(found)
    with pytest.raises(ValueError, match="no calibrator could be fitted: a 10 x 10"):
        select(tempered(60, 10), candidates=["matrix"], folds=3)


def test_only_those_that_preserve_the_class_on_request():
    found = select(tempered(300), keep_argmax=True, folds=2)
    assert {row.name for row in found.candidates} == {
        name for name, kind in CALIBRATORS.items() if kind.keeps_argmax
    }


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
    with pytest.raises(ValueError, match="no candidates are left"):
        select(tempered(100), candidates=["vector"], keep_argmax=True)
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
    plain = found.as_dict()
    assert plain["chosen"] == found.name
    assert [row["name"] for row in plain["candidates"]] == [row.name for row in found.candidates]
    assert plain["ties"] == list(found.ties)
