import json
import re
from functools import partial

import numpy as np
import pytest
from scipy import special

from calibrant import Predictions, metrics
from calibrant.cli.compare import METRICS_COMPARED, Row, enough_resamples, remarks, verdict

QUICK = ("--resamples", 240)


def row(metric="debiased_ece", low=0.02, high=0.04, p_value=0.001):
    return Row(metric, 0.1, 0.07, (low + high) / 2, low, high, p_value, 0.95)


def test_the_better_calibrated_model_is_named(run, pair):
    code, out, err = run("compare", *pair, *QUICK)
    assert (code, err) == (0, "")
    assert "2,000 examples, paired" in out
    for name in METRICS_COMPARED:
        assert re.search(rf"^{name} ", out, re.MULTILINE)
    last = out.splitlines()[-1]
    assert re.fullmatch(
        r"B is better calibrated: debiased_ece lower by 0\.\d{4} \[0\.\d{4}, 0\.\d{4}\]; "
        "B has the better nll and brier",
        last,
    )
    assert "ece, classwise_ece: sampling bias differs between models; rely on debiased_ece\n" in out
    assert "\x1b" not in out
    table = [line for line in out.splitlines()[:-1] if not line.startswith(("A:", "B:"))]
    assert max(map(len, table)) <= 80


def test_swapping_the_models_changes_the_signs(run, pair):
    tail = (*QUICK, "--json", "--metric", "debiased_ece", "--metric", "ece")
    _, one, _ = run("compare", *pair, *tail)
    _, two, _ = run("compare", *reversed(pair), *tail)
    one, two = (json.loads(text)["metrics"] for text in (one, two))
    for name, better in {"debiased_ece": ("B", "A"), "ece": (None, None)}.items():
        assert one[name]["difference"] == pytest.approx(-two[name]["difference"])
        assert (one[name]["higher"], two[name]["higher"]) == ("A", "B")
        assert (one[name]["better"], two[name]["better"]) == better


@pytest.fixture
def calibrated(tmp_path):
    """Two models of the same 2,000 examples, both calibrated: one knows the sign of s, one not."""
    generator = np.random.default_rng(0)
    x, s = 4 * generator.normal(size=2000), generator.choice([-8, 8], 2000)
    knows = special.expit(x + s)
    labels = (generator.random(2000) < knows).astype(int)
    for name, p in {"a": knows, "b": (special.expit(x + 8) + special.expit(x - 8)) / 2}.items():
        Predictions.from_binary(p, labels, kind="probs").save(tmp_path / f"{name}.npz")
    return "a.npz", "b.npz"


def test_a_sharper_model_is_not_called_better_calibrated(run, calibrated):
    _, out, _ = run("compare", *calibrated, *QUICK)
    assert out.splitlines()[-1] == (
        "no significant difference in debiased_binary_ece on 2,000 examples; "
        "A has the better nll and binary_brier"
    )


def test_biased_metrics_say_lower_instead_of_better(run, calibrated):
    tail = (*QUICK, "--metric", "adaptive_ece", "--metric", "nll")
    _, out, _ = run("compare", *calibrated, *tail)
    assert "better calibrated" not in out
    assert re.search(r"^adaptive_ece .* A lower$", out, re.MULTILINE)
    *_, remark, last = out.splitlines()
    assert remark == "adaptive_ece: sampling bias differs between models; add --metric debiased_ece"
    assert re.fullmatch(r"A has the lower adaptive_ece, by .*\]; A has the better nll", last)
    _, out, _ = run("compare", *calibrated, *tail, "--json")
    record = json.loads(out)
    assert record["remarks"] == [remark]
    found = record["metrics"]["adaptive_ece"]
    assert (found["higher"], found["better"]) == ("B", None)


NOISY = {name for name, each in metrics.METRICS.items() if each.calibration_error} - {
    "debiased_ece",
    "debiased_binary_ece",
}


@pytest.mark.parametrize("name", sorted(NOISY))
def test_no_other_error_decides_who_is_better_calibrated(name):
    found = row(name)
    assert found.better is None
    assert verdict({name: found}, 10) == f"B has the lower {name}, by 0.0300 [0.0200, 0.0400]"
    assert name in remarks({name: found})[0]
    assert remarks({name: row(name) for name in ("nll", "accuracy", "debiased_ece")}) == []


def test_values_are_those_of_the_library_corrected_for_their_number(run, pair):
    given = ("--bins", 8, "--level", 0.9, "--seed", 2, "--resamples", 60)
    chosen = ("--metric", "ece", "--metric", "accuracy", "--metric", "ece")
    _, out, _ = run("compare", *pair, *given, *chosen, "--json")
    record = json.loads(out)
    one, two = (Predictions.load(path) for path in pair)
    options = {"level": 0.9, "seed": 2, "resamples": 60}
    expected = {
        "ece": metrics.compare(partial(metrics.ece, bins=8), one, two, **options),
        "accuracy": metrics.compare(metrics.accuracy, one, two, **options),
    }
    assert list(record["metrics"]) == list(expected)
    corrected = metrics.holm([each.p_value for each in expected.values()])
    for (name, each), p_value in zip(expected.items(), corrected, strict=True):
        found = record["metrics"][name]
        kept = [found["difference"], found["low"], found["high"], found["p_value"]]
        assert kept == pytest.approx([each.value, each.low, each.high, p_value], rel=1e-9)
    assert record["metrics"]["ece"]["a"] == pytest.approx(metrics.ece(one, bins=8), rel=1e-9)
    assert (record["bins"], record["level"], record["seed"]) == (8, 0.9, 2)


def test_a_model_does_not_differ_from_itself(run, pair):
    _, out, _ = run("compare", pair[0], pair[0], *QUICK, "--metric", "ece")
    assert out.endswith("no significant difference in ece on 2,000 examples\n")


def test_names_of_arrays_are_passed_on(run, tmp_path):
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "n.npz", z=generator.normal(size=(60, 2)), y=generator.integers(0, 2, 60))
    tail = ("--labels", "y", "--resamples", 40, "--metric", "nll", "--max-expansion", 5)
    assert run("compare", "n.npz", "n.npz", "--logits", "z", *tail)[0] == 0


def test_too_few_resamples_are_pointed_out(run, pair):
    _, _, err = run("compare", *pair, "--resamples", 20, "--metric", "ece", "--metric", "nll")
    assert err == (
        "note: 20 resamples cannot show a difference in any of 2 metrics; use at least 80\n"
    )


@pytest.mark.parametrize(("count", "level"), [(1, 0.95), (6, 0.95), (6, 0.99), (3, 0.9)])
def test_enough_resamples_is_the_fewest_that_can_pass(count, level):
    fewest = enough_resamples(count, level)
    assert count * 2 / (fewest + 1) < 1 - level
    assert not count * 2 / fewest < 1 - level - 1e-12


def test_infinite_scores_of_both_do_not_differ(run, tmp_path):
    for name in ("a", "b"):
        Predictions.from_probs([[1.0, 0.0]] * 20, [1, 0] * 10).save(tmp_path / f"{name}.npz")
    code, out, _ = run("compare", "a.npz", "b.npz", "--resamples", 50, "--metric", "nll", "--json")
    assert code == 0
    found = json.loads(out)["metrics"]["nll"]
    assert (found["difference"], found["p_value"], found["better"]) == (None, 1.0, None)
    _, out, _ = run("compare", "a.npz", "b.npz", "--resamples", 50, "--metric", "nll")
    assert re.search(r"^nll +inf +inf +- +- +1\.0000  -$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (row(), "B is better calibrated: debiased_ece lower by 0.0300 [0.0200, 0.0400]"),
        (
            row(low=-0.04, high=-0.02),
            "A is better calibrated: debiased_ece lower by 0.0300 [0.0200, 0.0400]",
        ),
        (row("accuracy"), "A is better: accuracy higher by 0.0300 [0.0200, 0.0400]"),
        (row("nll"), "B is better: nll lower by 0.0300 [0.0200, 0.0400]"),
        (row("overconfidence"), "overconfidence of A is higher by 0.0300 [0.0200, 0.0400]"),
        (row(low=-0.01), "no significant difference in debiased_ece on 1,000 examples"),
        (row(p_value=0.06), "no significant difference in debiased_ece on 1,000 examples"),
    ],
)
def test_the_verdict_is_a_sentence(found, sentence):
    assert verdict({found.metric: found}, 1000) == sentence


def test_the_verdict_is_on_the_debiased_ece_where_it_was_asked_for_then_on_proper_scores():
    rows = {name: row(name) for name in ("ece", "nll", "brier", "accuracy")}
    rows["debiased_ece"] = row(low=-0.01)
    undecided = "no significant difference in debiased_ece on 10 examples"
    assert verdict(rows, 10) == f"{undecided}; B has the better nll and brier"
    rows["brier"] = row("brier", low=-0.04, high=-0.02)
    split = f"{undecided}; B has the better nll; A has the better brier"
    assert verdict(rows, 10) == split
