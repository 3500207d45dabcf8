"""What a study found: intervals, marks, recommendation and weak spots, from plain rows."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from calibrant.metrics.resampling.seeds import over_runs
from calibrant.report.comparison import compare
from calibrant.report.findings import findings, verdict
from calibrant.report.saved import Group, Saved, SavedCell
from calibrant.report.weak_spots import unfinished, weak_spots

RESULTS = Path(__file__).parents[2] / "studies" / "results"
PLACE = {"dataset": "d", "model": "m", "optimizer": "o", "split": "test"}


def rows(values, *, half=0.01, **place):
    """Rows of `{(method, calibrator): {metric: [value of each seed]}}`, `half` to each side."""
    return [
        {
            **PLACE,
            **place,
            "method": method,
            "calibrator": calibrator,
            "seed": seed,
            "metric": metric,
            "value": value,
            "low": None if half is None or value is None else value - half,
            "high": None if half is None or value is None else value + half,
        }
        for (method, calibrator), own in values.items()
        for metric, runs in own.items()
        for seed, value in enumerate(runs)
    ]


def lines_of(metric, half=0.01, **values):
    """Lines without calibrator, by name, of one metric."""
    return compare(
        rows({(k, "none"): {metric: v} for k, v in values.items()}, half=half)
    ).combinations


def marks(lines, metric):
    return [line.readings[metric].mark for line in lines]


def cell(method, seed, status="done", reason=""):
    labels = {"dataset": "d", "model": "m", "optimizer": "o", "method": method}
    return SavedCell(labels, seed, status, reason, Path("nowhere"))


def real(name):
    """Rows of a real study in this repository."""
    with open(RESULTS / name, newline="") as handle:
        found = list(csv.DictReader(handle))
    for row in found:
        row["seed"] = int(row["seed"])
        row |= {key: float(row[key]) if row[key] else None for key in ("value", "low", "high")}
    return found


def test_a_reading_is_the_mean_over_runs_with_the_value_of_each_seed():
    reading = lines_of("nll", a=[1.0, 1.2], b=[3, 3])[0].readings["nll"]
    assert reading.interval == over_runs("nll", [(1.0, 0.99, 1.01), (1.2, 1.19, 1.21)])
    assert reading.values == {0: 1.0, 1: 1.2}


def test_differences_are_paired_by_seed_with_a_t_interval():
    # Seeds vary by 1, differences by 0.01: only pairing can see them.
    one, two = [1.0, 2.0, 3.0], [1.10, 2.11, 3.12]
    lines = lines_of("nll", a=one, b=two)
    gap = lines[1].readings["nll"].difference
    test = stats.ttest_rel(two, one)
    low, high = test.confidence_interval()
    assert (gap.low, gap.high, gap.p_value) == pytest.approx((low, high, test.pvalue))
    assert (gap.how, gap.seeds) == ("seeds", 3)
    assert marks(lines, "nll") == ["best", "worse"]
    # Seeds are matched by their number, not by their place.
    values = {("a", "none"): {"nll": [1.0, 2.0, 3.0]}, ("b", "none"): {"nll": [9, 2.11, 3.12]}}
    found = [row for row in rows(values) if (row["method"], row["seed"]) != ("b", 0)]
    gap = compare(found[::-1]).combinations[0].readings["nll"].difference
    assert (gap.value, gap.seeds) == (pytest.approx(0.115), 2)


def test_higher_is_better_for_accuracy_and_zero_for_overconfidence():
    lines = lines_of("accuracy", a=[0.9, 0.91], b=[0.8, 0.8101])
    assert marks(lines, "accuracy") == ["best", "worse"]
    assert lines[1].readings["accuracy"].difference.value == pytest.approx(-0.1, abs=1e-3)
    lines = lines_of("overconfidence", a=[-0.3, -0.31], b=[0.1, 0.1101])
    assert marks(lines, "overconfidence") == ["worse", "best"]
    # Of one seed, too, the distance to zero is compared.
    gap = lines_of("overconfidence", a=[0.005], b=[-0.1])[1].readings["overconfidence"].difference
    # 0.1 within [0.09, 0.11] against 0.005 within [0, 0.015].
    assert gap.value == pytest.approx(0.095)
    assert gap.low == pytest.approx(0.095 - math.hypot(0.01, 0.01))
    assert gap.high == pytest.approx(0.095 + math.hypot(0.01, 0.005))


def test_with_one_seed_the_intervals_over_examples_decide_and_the_note_says_so():
    end = 1 + 0.01 * 2**0.5
    values = {"a": [1.0], "b": [1.013], "c": [1.015], "d": [end]}
    comparison = compare(rows({(k, "none"): {"nll": v} for k, v in values.items()}))
    # Two halves of 0.01 at right angles are 0.01414.
    assert marks(comparison.combinations, "nll")[:3] == ["best", "equal", "worse"]
    gap = comparison.combinations[1].readings["nll"].difference
    assert (gap.how, gap.seeds) == ("examples", 1)
    assert (gap.low, gap.high) == pytest.approx((0.013 - 0.01 * 2**0.5, 0.013 + 0.01 * 2**0.5))
    assert comparison.combinations[3].readings["nll"].difference.p_value == pytest.approx(
        0.05, abs=1e-6
    )
    assert "over test examples" in comparison.note


def test_without_a_spread_a_common_seed_or_an_interval_nothing_is_claimed():
    same = {"a": [0.5, 0.6], "b": [0.49, 0.59]}
    lines = lines_of("accuracy", **same, half=0.05)
    assert lines[1].readings["accuracy"].difference.how == "examples"
    assert marks(lines, "accuracy") == ["best", "equal"]
    assert marks(lines_of("accuracy", **same, half=None), "accuracy") == ["best", "unknown"]
    values = {("a", "none"): {"nll": [1.0, 1.1]}, ("b", "none"): {"nll": [2.0, 2.1]}}
    apart = [row for row in rows(values) if (row["method"] == "a") == (row["seed"] == 0)]
    assert marks(compare(apart).combinations, "nll") == ["best", "unknown"]
    lines = lines_of("nll", a=[1.0], b=[2.0], half=None)
    assert marks(lines, "nll") == ["best", "unknown"]
    assert math.isnan(lines[0].readings["nll"].interval.low)
    # What reads exactly as the best is best too.
    assert marks(lines_of("accuracy", a=[0.5, 0.6], b=[0.5, 0.6]), "accuracy") == ["best"] * 2


def test_p_values_are_corrected_for_the_number_of_combinations():
    noise = np.random.default_rng(0).normal(0, 0.01, (5, 4))
    lines = lines_of("nll", **{f"m{i}": list(1 + 0.02 * i + noise[i]) for i in range(5)})
    found = [line.readings["nll"].difference for line in lines]
    found = [gap for gap in found if gap]
    assert len(found) == 4
    smallest = min(found, key=lambda gap: gap.p_value)
    assert smallest.adjusted == pytest.approx(4 * smallest.p_value)
    assert all(gap.adjusted >= gap.p_value for gap in found)


@pytest.mark.parametrize("none", [None, math.nan])
def test_a_combination_without_a_finite_value_in_a_seed_is_not_the_best(none):
    values = {("a", "none"): {"nll": [0.1, none, none], "ece": [none] * 3}}
    values["b", "none"] = {"nll": [1.0, 1.1, 1.3], "ece": [0.1, 0.2, 0.3]}
    comparison = compare(rows(values))
    assert marks(comparison.combinations, "nll") == ["unknown", "best"]
    assert comparison.combinations[0].readings["nll"].missing == 2
    assert "ece" not in comparison.combinations[0].readings
    found = verdict(comparison)
    assert str(found.line) == "b without calibrator"
    assert "No comparison is possible with a without calibrator" in " ".join(found.sentences)


def test_columns_are_ordered_and_classes_are_no_columns():
    own = {"smece": [0.1], "classwise_ece: 3": [0.2], "nll": [1.0], "my own": [1.0]}
    comparison = compare(rows({("a", "temperature"): own, ("a", "none"): own}))
    assert comparison.metrics == ("nll", "smece", "my own")
    assert [line.calibrator for line in comparison.combinations] == ["none", "temperature"]


def test_rows_of_two_groups_are_refused():
    values = {("a", "none"): {"nll": [1.0]}}
    both = rows(values) + rows(values, optimizer="another")
    with pytest.raises(ValueError, match="rows must be of one dataset and model, but a, none, s"):
        compare(both)
    assert [line.name for line in compare(both, axis="optimizer").combinations] == ["o", "another"]


def study_of(nll, accuracy=None, **options):
    """One line for each name `method+calibrator`, and the verdict about them."""
    values = {}
    for name, runs in nll.items():
        own = {"accuracy": accuracy[name]} if accuracy else {}
        values[tuple(name.split("+"))] = {**own, "nll": runs}
    return verdict(compare(rows(values, **options)))


def test_the_verdict_is_the_best_proper_score_without_a_loss_of_accuracy():
    found = study_of(
        {
            "cross_entropy+temperature": [1.0, 1.1, 1.2],
            "a+none": [0.8, 0.9, 1.0001],
            "b+none": [0.5, 0.6, 0.7001],
        },
        {
            "cross_entropy+temperature": [0.9, 0.91, 0.92],
            "a+none": [0.899, 0.911, 0.922],
            "b+none": [0.7, 0.71, 0.7201],
        },
    )
    assert str(found.line) == "a without calibrator"
    assert [str(line) for line in found.better] == ["b without calibrator"]
    assert str(found.baseline) == "cross_entropy with temperature scaling"
    assert (found.kind, found.certainty, found.is_clear) == ("usual", "certain", True)
    assert found.headline == "Use a without calibrator"
    text = " ".join(found.sentences)
    assert "b without calibrator has a lower NLL, but significantly lower accuracy." in text
    assert "NLL is 0.19997 (18.2 %) lower [-0.20011, -0.19982]" in text
    assert "5 % level (paired over 3 seeds), also after correction for 2 comparisons." in text
    assert "All others are significantly worse in NLL or accuracy, each compared alone." in text
    assert found.relative == pytest.approx(-0.2 / 1.1, rel=1e-3)


@pytest.mark.parametrize(
    ("accuracy", "half", "words"),
    [
        ([0.9, 0.93], 0.05, ", the highest."),
        ([0.8, 0.7], 0.05, ", not significantly below the highest, 86.0 % [81.0, 91.0] of b"),
        ([0.83, 0.83], None, ", which cannot be compared with the highest, 86.0000 % of b"),
        ([0.5, 0.5001], 0.01, ", significantly below the highest, 86.0 % [85.0, 87.0] of b"),
    ],
)
def test_accuracy_is_compared_with_the_highest(accuracy, half, words):
    # Where all others are more accurate, they have no finite score.
    other = [None, None] if half == 0.01 else [2.0, 2.1]
    values = {("a", "none"): {"nll": [1.0, 1.2], "accuracy": accuracy}}
    values["b", "none"] = {"nll": other, "accuracy": [0.86, 0.86]}
    found = verdict(compare(rows(values, half=half)))
    assert found.line.name == "a"
    assert words in found.sentences[1]


def test_a_winner_that_cannot_be_compared_or_is_lucky_says_so():
    values = {
        ("cross_entropy", "temperature"): {"nll": [2.0, 2.1]},
        ("a", "none"): {"nll": [1, 1.1]},
    }
    apart = [row for row in rows(values) if (row["method"] == "a") == (row["seed"] == 0)]
    found = verdict(compare(apart))
    assert found.certainty == "unknown"
    assert "the usual baseline: they share no seed" in " ".join(found.sentences)
    nll = {"cross_entropy+temperature": [2.0, 2.1, 2.2], "a+none": [2.5, 2.61, 2.7, 0.1, 0.1]}
    found = study_of(nll)
    assert (found.line.name, found.certainty) == ("a", "open")
    text = " ".join(found.sentences)
    assert "In the seeds that both have, its NLL is significantly worse" in text


def test_the_verdict_that_the_baseline_wins_says_exactly_that():
    found = study_of({"a+none": [1.3, 1.5, 1.4], "cross_entropy+temperature": [1.0, 1.11, 1.2]})
    assert found.baseline is found.line
    assert found.gains == {}
    assert found.headline == "Use cross_entropy with temperature scaling"
    assert found.is_clear
    assert "That is the usual baseline: no other combination is better." in found.sentences
    # A first method without cross entropy is advised only if the others are worse.
    near = study_of({"a+none": [1.0, 1.2, 1.1], "b+none": [1.1, 1.15, 1.2]})
    assert near.baseline is near.line
    assert near.headline == "No clear winner. Lowest NLL: a without calibrator"
    far = study_of({"a+none": [1.0, 1.2, 1.1], "b+none": [2.1, 2.31, 2.2]})
    assert far.headline == "Use a without calibrator"


def test_a_winner_that_is_not_certainly_better_is_not_said_to_be():
    nll = {"cross_entropy+temperature": [1.0, 1.2, 1.1], "a+none": [1.1, 0.9, 1.09]}
    found = study_of(nll, half=0.2)
    assert (found.certainty, found.is_clear) == ("open", False)
    assert found.headline == "No clear winner. Lowest NLL: a without calibrator"
    assert found.sentences[-3:] == (
        "The difference in NLL is not significant (paired over 3 seeds): it may be chance.",
        "The other one is not significantly worse in NLL.",
        "The simplest with a similar NLL is cross_entropy with temperature scaling: "
        "1.10 [0.82, 1.38].",
    )


def test_one_seed_is_never_certain():
    found = study_of({"cross_entropy+temperature": [2.0], "a+none": [1.0]})
    assert found.certainty == "likely"
    assert found.gains["nll"].adjusted < 1e-6
    text = " ".join(found.sentences)
    assert "at the 5 % level (over test examples; another training may differ)." in text
    assert "(one seed)" in text


def test_a_difference_that_the_correction_removes_is_only_likely():
    noise = np.random.default_rng(1).normal(0, 0.05, (30, 3))
    nll = {f"m{i}+none": list(1.5 + noise[i]) for i in range(30)}
    nll |= {"cross_entropy+temperature": [1.2, 1.21, 1.19], "best+none": [1.1, 1.12, 1.08]}
    found = study_of(nll)
    gap = found.gains["nll"]
    assert gap.p_value < 0.05 < gap.adjusted
    assert (found.certainty, found.is_clear) == ("likely", False)
    assert found.headline == "Likely best: best without calibrator"
    assert "but not after correction for 31 comparisons" in " ".join(found.sentences)


def test_the_simplest_of_the_ties_is_near_the_winner():
    # With two seeds nearly everything is a tie; twice the NLL is no simple way to the same.
    found = study_of(
        {
            "a+temperature": [1.0, 1.2],
            "a+none": [1.01, 1.205],
            "cross_entropy+none": [2.5, 1.9],
            "cross_entropy+isotonic": [1.05, 1.21],
        },
        half=0.05,
    )
    assert len(found.ties) == 3
    assert str(found.simplest) == "cross_entropy with isotonic regression"
    assert "With two seeds, only large differences can be significant." in found.sentences


@pytest.mark.parametrize(
    ("names", "baseline", "kind"),
    [
        (["a+none", "cross_entropy+none", "cross_entropy+temperature"], 2, "usual"),
        (["a+none", "a+temperature", "cross_entropy+none"], 2, "plain"),
        (["a+none", "cross_entropy+isotonic"], 1, "plain"),
        (["a+none", "a+temperature", "b+none"], 1, "first"),
        (["a+none", "b+none"], 0, "first"),
    ],
)
def test_the_baseline_is_the_nearest_to_cross_entropy_with_temperature(names, baseline, kind):
    found = study_of({name: [1.0 + place] for place, name in enumerate(names)})
    assert found.baseline is found.comparison.combinations[baseline]
    assert found.kind == kind


def test_optimizers_are_compared_with_the_first_of_them():
    one, two = ({("cross_entropy", "none"): {"nll": nll}} for nll in ([1.0, 1.1], [0.5, 0.7]))
    both = rows(one, optimizer="sgd") + rows(two, optimizer="adam")
    found = verdict(compare(both, axis="optimizer"))
    assert (found.line.name, found.baseline.name) == ("adam", "sgd")
    assert "the first optimizer of the study: NLL is" in " ".join(found.sentences)


def test_brier_decides_without_nll_and_nothing_without_either():
    found = verdict(compare(rows({("a", "none"): {"brier": [0.3]}, ("b", "none"): {"brier": [1]}})))
    assert (found.proper, found.line.name) == ("brier", "a")
    assert "the lowest of 2 combinations of method and calibrator" in found.sentences[0]
    none = verdict(compare(rows({("a", "none"): {"ece": [0.3]}, ("b", "none"): {"ece": [0.1]}})))
    assert none.line is None
    assert none.headline == "No recommendation: neither NLL nor Brier score was measured"


def test_one_combination_and_none_have_a_verdict():
    found = study_of({"a+none": [1.0, 1.1]})
    assert found.baseline is None
    assert found.sentences == ("NLL of a without calibrator: 1.05 [0.91, 1.19] (mean of 2 seeds).",)
    empty = verdict(compare([]), cells=[cell("a", 0, "failed", "why"), cell("a", 1, "pending")])
    assert empty.headline == "No run has finished yet"
    assert empty.sentences[-1] == "2 of 2 runs have no result."
    failed = verdict(compare([]), cells=[cell("a", 0, "failed"), cell("a", 1, "diverged")])
    assert (failed.headline, failed.sentences) == ("All runs failed", ("The reasons are below.",))


def test_missing_accuracy_and_missing_seeds_are_said():
    found = study_of({"cross_entropy+temperature": [1.0, 1.2], "a+none": [1.1, 1.3001]})
    assert "Accuracy was not measured: it may be lower than that of others." in found.sentences
    assert found.sentences[-1] == "The other one is significantly worse in NLL."
    values = {("cross_entropy", "temperature"): {"nll": [2.0, 2.1]}, ("a", "none"): {"nll": [1.0]}}
    found = verdict(compare(rows(values)), cells=[cell("a", 0), cell("a", 1, "failed", "x")])
    assert "(1 of 2 seeds)" in found.sentences[0]
    assert found.sentences[-1] == "1 of 2 runs has no result."


def test_weak_spots_name_classes_rare_ones_confidence_and_what_is_missing():
    own = {"nll": [1.0, 1.1], "overconfidence": [0.08, 0.082]}
    errors = {**dict.fromkeys("abd", 1), "c": 9}
    own |= {f"classwise_ece: {name}": [value] * 2 for name, value in errors.items()}
    found = rows({("x", "none"): own}, half=0.01)
    found += rows({("x", "matrix"): {"nll": [None, None], "overconfidence": [None, None]}})
    for part, value in (("head", 0.9), ("tail", 0.2)):
        found += rows({("x", "none"): {"accuracy": [value]}}, split=f"test: {part}")
    group = Group({}, "method", (cell("x", 0), cell("y", 0, "diverged", "lower the rate")), found)
    comparison = compare(found)
    text = weak_spots(group, comparison, comparison.combinations[0])
    assert text == (
        "Largest calibration error of a class: c (900.0 %). The mean over classes is 300.0 %.",
        "Accuracy by class frequency: 90.0 % [89.0, 91.0] for frequent classes, "
        "20.0 % [19.0, 21.0] for rare classes.",
        "Mean confidence is 8.1 points higher [+7.1, +9.1] than accuracy: the model is "
        "over-confident.",
        "x with matrix scaling has no result: the calibrator could not be fitted.",
        "diverged: d, m, o, y, seed 0: lower the rate",
    )
    assert weak_spots(group, comparison, None) == text[3:]


def test_runs_that_failed_for_the_same_reason_are_listed_once():
    cells = [cell("a", seed, "failed", "why") for seed in range(3)] + [cell("b", 0, "pending")]
    assert unfinished(cells) == [
        "failed: d, m, o, a, seed 0 and 2 more: why",
        "pending: d, m, o, b, seed 0",
    ]


def test_the_real_study_of_losses_finds_its_baseline():
    found = verdict(compare(real("losses-cpu.csv")))
    assert str(found.line) == "cross_entropy with temperature scaling"
    assert found.sentences[:4] == (
        "NLL of cross_entropy with temperature scaling: 1.266 [1.224, 1.306] (mean of 3 seeds), "
        "the lowest of 18 combinations of method and calibrator.",
        "Accuracy: 56.2 % [54.1, 58.3], the highest.",
        "ECE: 2.0 % [0.1, 2.9].",
        "That is the usual baseline: no other combination is better.",
    )


def test_the_real_long_tailed_study_gains_over_its_baseline():
    own = [row for row in real("cals_longtail-cpu.csv") if row["dataset"] == "cifar10-LT"]
    found = verdict(compare(own))
    assert str(found.line) == "logit adjustment with focal temperature scaling"
    assert found.certainty == "likely"
    base, mine = ([1.894, 1.888, 1.865], [1.842, 1.812, 1.814])
    low, high = stats.ttest_rel(mine, base).confidence_interval()
    assert (found.gains["nll"].low, found.gains["nll"].high) == pytest.approx((low, high))


def test_findings_are_made_of_each_group_of_a_study(tmp_path):
    cells = (cell("plain", 0), cell("a", 0))
    study = {"method": [{"name": "cross_entropy", "label": "plain"}, {"name": "focal"}]}
    values = {("plain", "temperature"): {"nll": [2.0]}, ("a", "none"): {"nll": [1.0]}}
    (found,) = findings(Saved(tmp_path, "s", "", study, cells, rows(values)))
    assert found.group.title == "d, m, o"
    assert (found.verdict.baseline.name, found.verdict.kind) == ("plain", "usual")
