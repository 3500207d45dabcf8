"""The largest calibration error of segments."""

import math

import numpy as np
import pytest
from scipy import stats

from calibrant import Predictions, metrics
from calibrant.metrics import multicalibration, multicalibration_error


def drawn(n, seed, *, bias=0.0):
    generator = np.random.default_rng(seed)
    truth, region = generator.normal(size=n), np.array(["n", "s", "w"])[generator.integers(0, 3, n)]
    age = generator.uniform(20, 80, n)
    labels = (generator.random(n) < 1 / (1 + np.exp(-truth))).astype(int)
    scores = truth + bias * ((region == "s") & (age > 50))
    return Predictions.from_binary(scores, labels, kind="logits"), {"region": region, "age": age}


def test_each_segment_equals_the_metrics_of_its_examples():
    p, columns = drawn(900, 0)
    p = Predictions.from_binary(p.positive_probs.round(decimals=1), p.labels, kind="probs")
    columns["age"][:100] = np.nan
    found = multicalibration_error(p, columns, bins=3, least=40)
    age, region = columns["age"], columns["region"]
    edges = np.quantile(age[100:], [1 / 3, 2 / 3], method="inverted_cdf")
    bins = {f"age <= {edges[0]:.6g}": age <= edges[0], f"age > {edges[1]:.6g}": age > edges[1]}
    bins |= {"age=missing": np.isnan(age)}
    middle = (age > edges[0]) & (age <= edges[1])
    bins |= {f"{edges[0]:.6g} < age <= {edges[1]:.6g}": middle}
    masks = {f"region={name}": region == name for name in "nsw"}
    masks |= bins | {f"{a}, {b}": masks[a] & bins[b] for a in masks for b in bins}
    masks |= {"all examples": np.ones(900, dtype=bool)}
    expected = {name: mask for name, mask in masks.items() if mask.sum() >= 40}
    assert {each.name for each in found.segments} == set(expected)
    p_values = {}
    for name, mask in expected.items():
        part = p.take(mask)
        test = metrics.cumulative_test(part, positive=True)
        each = next(each for each in found.segments if each.name == name)
        assert each.examples == mask.sum()
        assert each.error == pytest.approx(metrics.calibration_in_the_large(part)), name
        assert each.statistic == pytest.approx(test.statistic), name
        p_values[name] = test.p_value
    corrected = dict(zip(p_values, metrics.holm(list(p_values.values())), strict=True))
    for each in found.segments:
        assert each.p_value == pytest.approx(corrected[each.name])
    assert found.largest == max(each.statistic for each in found.segments)


def test_a_planted_pair_is_the_worst_and_calibrated_segments_are_not_significant():
    p, columns = drawn(8000, 1, bias=1.5)
    found = multicalibration_error(p, columns)
    assert found.segments[0].name.startswith("region=s, ")
    assert found.segments[0].p_value < 1e-6
    assert "worst of 20 segments: region=s, " in str(found)
    assert found._repr_html_().count("<tr>") == 21
    assert found.largest_ecce > 0.1
    rejected = [
        bool(multicalibration_error(*drawn(1500, seed)).significant()) for seed in range(30)
    ]
    # 5 % of 30 are 1.5; more than 5 have a probability of 0.3 %.
    assert sum(rejected) <= 5


def test_weights_are_copies_and_have_no_p_values():
    p, columns = drawn(800, 2)
    counts = np.random.default_rng(0).integers(0, 4, 800)
    rows = np.repeat(np.arange(800), counts)
    one = multicalibration_error(p.reweighted(counts), columns)
    copies = {name: values[rows] for name, values in columns.items()}
    two = multicalibration_error(p.take(rows), copies)
    assert [each.name for each in one.segments] == [each.name for each in two.segments]
    for a, b in zip(one.segments, two.segments, strict=True):
        assert (a.examples, a.error) == (b.examples, pytest.approx(b.error, abs=1e-12))
        assert a.statistic == pytest.approx(b.statistic)
        assert math.isnan(a.p_value)
    assert "standard errors" in one.verdict


def test_the_confidence_of_several_classes_and_certain_predictions():
    generator = np.random.default_rng(0)
    z = generator.normal(size=(500, 3))
    p = Predictions(z, (z + generator.gumbel(size=z.shape)).argmax(1))
    found = multicalibration_error(p, {"a": [True, False] * 250}, pairs=False)
    whole = next(each for each in found.segments if each.name == "all examples")
    assert whole.ecce == pytest.approx(metrics.ecce(p))
    assert {each.name for each in found.segments} == {"all examples", "a=True", "a=False"}
    # Few events: a Poisson test of their number.
    rare = Predictions.from_binary([0.001] * 500, [1, 1, 1] + [0] * 497, kind="probs")
    found = multicalibration_error(rare, {"a": np.zeros(500)}, pairs=False)
    own = 2 * stats.poisson.sf(2, 0.5)
    # Two segments, "all examples" and its copy.
    assert found.segments[0].p_value == pytest.approx(2 * own)
    sure = Predictions.from_probs([[1.0, 0.0]] * 200, [0] * 199 + [1])
    assert multicalibration_error(sure, {"a": np.zeros(200)}).largest == math.inf
    with pytest.raises(ValueError, match="at least 2"):
        multicalibration_error(p, {"a": z[:, 0]}, bins=1)


def test_only_pairs_that_are_large_enough_get_a_name(monkeypatch):
    made = []

    def counted(names, of_example):
        levels = named(names, of_example)
        return levels._replace(name_of=lambda at: made.append(at) or names[at])

    named = multicalibration._named
    monkeypatch.setattr(multicalibration, "_named", counted)
    rows = np.arange(6000)
    # One pair has 150 examples, all others have few.
    user = np.char.add("u", np.where(rows < 150, 2999, rows % 3000).astype(str))
    item = np.char.add("i", np.where(rows < 150, 2998, 7 * rows % 3001 % 3000).astype(str))
    scores = np.random.default_rng(0).normal(size=6000)
    p = Predictions.from_binary(scores, rows % 2, kind="logits")
    found = multicalibration_error(p, {"user": user, "item": item})
    names = {each.name for each in found.segments}
    assert names == {"user=u2999, item=i2998", "user=u2999", "item=i2998", "all examples"}
    # All examples, a user, an item, and the two parts of a pair.
    assert len(made) == 5


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        (1_700_000_000 + np.arange(400), ["1700000099", "1700000199", "1700000299"]),
        (20_240_101 + np.arange(400), ["20240200", "20240300", "20240400"]),
        (1 + 1e-9 * np.arange(400), ["1.0000001", "1.0000002", "1.0000003"]),
        (1.7e9 + np.arange(400) / 800, ["1700000000.1", "1700000000.2", "1700000000.4"]),
        (np.arange(400) / 300, ["0.33", "0.663333", "0.996667"]),
        (1e29 * (1 + np.arange(400) / 400), ["1.2475e+29", "1.4975e+29", "1.7475e+29"]),
    ],
)
def test_edges_have_as_many_digits_as_tell_them_apart(values, edges):
    p = Predictions.from_binary(np.full(400, 0.5), [0, 1] * 200, kind="probs")
    found = multicalibration_error(p, {"t": values})
    low, one, two = edges
    assert {each.name for each in found.segments} == {
        "all examples",
        f"t <= {low}",
        f"{low} < t <= {one}",
        f"{one} < t <= {two}",
        f"t > {two}",
    }
