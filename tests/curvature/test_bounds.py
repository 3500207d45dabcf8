"""Bounds as values: accurate at any confidence, weighted, and errors for invalid arguments."""

import math

import numpy as np
import pytest
import torch

from calibrant.curvature.bounds import Bound, interpolation_bounds, population_bounds
from calibrant.curvature.margins import margin_tail, margins
from calibrant.metrics import ece
from calibrant.predictions import Predictions


def drawn(n=3000, k=5, *, spread=2.0, seed=0, **extras):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n, k)) * random.exponential(spread, size=(n, 1))
    return Predictions(logits, random.integers(k, size=n), **extras)


def named(bounds, name):
    (found,) = (each for each in bounds if each.name == name)
    return found


def assert_sides(bounds, expected):
    """Compare with a dict, or with bounds of the same names."""
    if not isinstance(expected, dict):
        expected = {each.name: (each.left, each.right) for each in expected}
    found = {each.name: (each.left, each.right) for each in bounds}
    assert found.keys() == expected.keys()
    for name, both in expected.items():
        assert found[name] == pytest.approx(both, rel=1e-12), name


def test_a_bound_holds_up_to_rounding():
    for left, right in ((1.0, 2.0), (2.0 + 1e-9, 2.0), (0.0, 0.0), (1e300, math.inf)):
        assert Bound("a <= b", left, right).holds
    nan = math.nan
    for left, right in ((2.001, 2.0), (nan, 2.0), (1.0, nan), (1e-20, 1e-21), (1e-20, 0.0)):
        assert not Bound("a <= b", left, right).holds
    bound = Bound("ECE <= E[1 - p_y]", 0.5, 0.25)
    assert bound.slack == -0.25
    assert str(bound) == "ECE <= E[1 - p_y]: 0.5 <= 0.25 FAILS"


class TestCalibrationErrorOfBounds:
    @pytest.mark.parametrize("bins", [1, 15, 100, [0, 0.3, 0.9, 1]])
    def test_is_that_of_the_metric(self, bins):
        for seed in range(5):
            held = drawn(seed=seed, weights=np.arange(3000) % 4)
            left = named(population_bounds(held, bins=bins), "ECE <= E[1 - p_y]").left
            assert left == pytest.approx(ece(held, bins=bins), abs=1e-13)

    def test_is_that_of_the_metric_on_bin_edges(self):
        # A third is the edge between two bins, whose gaps have different signs.
        logits = np.zeros((300, 3))
        logits[::2, 0] = 0.1
        held = Predictions(logits, np.arange(300) % 2)
        left = named(population_bounds(held), "ECE <= E[1 - p_y]").left
        assert left == pytest.approx(ece(held), abs=1e-13)
        probs = Predictions.from_probs(np.tile([0.6, 0.4], (100, 1)), np.arange(100) % 2)
        for bins in (5, 10, 15):
            left = named(population_bounds(probs, bins=bins), "ECE <= E[1 - p_y]").left
            assert left == pytest.approx(ece(probs, bins=bins), abs=1e-13)


class TestConfidentNetworks:
    @pytest.mark.parametrize("margin", [1.0, 20.0, 46.0, 300.0, 700.0])
    def test_bounds_are_accurate(self, margin):
        logits = torch.zeros(2000, 3, dtype=torch.float64)
        logits[:, 1] = margin
        found = interpolation_bounds(Predictions(logits, [1] * 2000))
        tail = math.exp(-margin)
        miss = 2 * tail / (1 + 2 * tail)
        assert named(found, "ECE <= E[1 - p_y]").left == pytest.approx(miss, rel=1e-12)
        assert named(found, "Q_D / 2 <= ECE").left == pytest.approx(tail / 2, rel=1e-12)
        assert all(each.holds for each in found)
        # One minus the confidence rounds to zero.
        assert margin < 40 or 1 - Predictions(logits, [1] * 2000).confidence.max() == 0

    def test_a_curvature_above_the_bound_is_detected(self):
        logits = torch.tensor([[46.0, 0.0, 0.0]], dtype=torch.float64)
        held = Predictions(logits, [0])
        for sharpness, holds in ((1e-20, True), (1e-18, False)):
            found = population_bounds(held, jacobian=1.0, sharpness=sharpness)
            assert named(found, "lambda_max <= 2 C_J^2 E[1 - p_max]").holds == holds
            found = interpolation_bounds(held, jacobian=1.0, sharpness=sharpness, trace=sharpness)
            assert named(found, "lambda_max <= 2 C_J^2 ECE").holds == holds
            assert named(found, "trace <= 2 C_J^2 ECE").holds == holds

    def test_with_infinite_margins_have_zero_or_trivial_bounds(self):
        found = interpolation_bounds(Predictions([[0.0, -math.inf], [2000.0, 0.0]], [0, 0]))
        assert all(each.holds and each.left == each.right == 0 for each in found)
        settings = {"jacobian": 0.0, "sharpness": 0.0, "margins": [-math.inf]}
        found = population_bounds(Predictions([[0.0, -math.inf]], [1]), **settings)
        assert named(found, "ECE <= min(1, (K-1) Q)") == Bound("ECE <= min(1, (K-1) Q)", 1.0, 1.0)
        assert all(each.holds for each in found)


class TestValuesByHand:
    """Logits (log 3, 0), once correct, once wrong."""

    held = Predictions([[math.log(3), 0.0], [math.log(3), 0.0]], [0, 1])

    def test_of_theorem_4_1(self):
        # p = (3/4, 1/4); margins log 3 and -log 3: Q = (1/3 + 3) / 2; predicted ones: 1/3.
        settings = {"jacobian": [1.0, 2.0], "sharpness": 0.5, "trace": 0.75}
        found = population_bounds(self.held, margins=[0.0, -math.log(3)], **settings)
        expected = {
            "ECE <= E[1 - p_y]": (0.25, 0.5),
            "ECE <= min(1, (K-1) Q)": (0.25, 1.0),
            "ECE <= min(1, (K-1) Q_robust)": (0.25, 1.0),
            "lambda_max <= 2 C_J^2 E[1 - p_max]": (0.5, 8 * 0.25),
            "lambda_max <= 2 C_J^2 min(1, (K-1) Q)": (0.5, 8.0),
            "lambda_max <= 2 C_J^2 min(1, (K-1) Q_robust)": (0.5, 8.0),
            "lambda_max <= 2 C_J^2 min(1, (K-1) Q_predicted)": (0.5, 8 / 3),
            "trace <= C_J^2 E[1 - p_max^2]": (0.75, 4 * 7 / 16),
        }
        assert_sides(found, expected)

    def test_of_theorem_4_2(self):
        # p = (3, 1, 1) / 5 and (9, 3, 3) / 15: ECE 2/5, margins log 3, Q_D = 1/3.
        held = Predictions(
            [[math.log(3), 0.0, 0.0], [math.log(9), math.log(3), math.log(3)]], [0] * 2
        )
        found = interpolation_bounds(held, jacobian=2.0, sharpness=0.5, trace=0.75)
        expected = {
            "ECE <= E[1 - p_y]": (2 / 5, 2 / 5),
            "E[1 - p_y] <= ECE": (2 / 5, 2 / 5),
            "Q_D / K <= ECE": (1 / 9, 2 / 5),
            "Q_D / 2 <= ECE": (1 / 6, 2 / 5),
            "ECE <= (K-1) Q_D": (2 / 5, 2 / 3),
            "(K-1) Q_D <= (K-1) exp(-min m)": (2 / 3, 2 / 3),
            "lambda_max <= 2 C_J^2 ECE": (0.5, 8 * 2 / 5),
            "lambda_max <= 2 C_J^2 (K-1) Q_D": (0.5, 8 * 2 / 3),
            "2 C_J^2 (K-1) Q_D <= 2 C_J^2 K (K-1) ECE": (8 * 2 / 3, 8 * 6 * 2 / 5),
            "trace <= 2 C_J^2 ECE": (0.75, 8 * 2 / 5),
        }
        assert_sides(found, expected)

    def test_without_curvature_there_are_bounds_of_the_error_only(self):
        names = ["ECE <= E[1 - p_y]", "ECE <= min(1, (K-1) Q)"]
        assert [each.name for each in population_bounds(self.held)] == names
        held = self.held.relabelled(self.held.predicted)
        assert len(interpolation_bounds(held)) == 6


def test_weights_are_repetitions():
    weights = np.arange(300) % 3
    norms = torch.rand(300, dtype=torch.float64) + 1
    held = drawn(300, weights=weights)
    often = torch.from_numpy(np.repeat(np.arange(300), weights))
    repeated = drawn(300).take(often)
    lower = margins(held.logits, held.labels) - 0.1
    settings = {"sharpness": 0.1, "trace": 0.2}
    assert_sides(
        population_bounds(held, jacobian=norms, margins=lower, **settings),
        population_bounds(repeated, jacobian=norms[often], margins=lower[often], **settings),
    )
    # Tails of correct predictions are not clipped at one.
    assert_sides(
        interpolation_bounds(held.relabelled(held.predicted)),
        interpolation_bounds(repeated.relabelled(repeated.predicted)),
    )
    # A weight of zero leaves an example out.
    held = Predictions([[2.0, 0.0], [2.0, 0.0]], [0, 1], weights=[1, 0])
    assert_sides(
        interpolation_bounds(held, jacobian=[1.0, 1e9], sharpness=0.1),
        interpolation_bounds(held.take([0]), jacobian=1.0, sharpness=0.1),
    )


def test_robust_margins_give_a_larger_tail():
    held = drawn(100, spread=0.1)
    lower = margins(held.logits, held.labels) + 3 - 0.5
    larger = held.logits + 3 * torch.nn.functional.one_hot(held.labels, 5)
    found = population_bounds(Predictions(larger, held.labels), margins=lower)
    clean, robust = (named(found, f"ECE <= min(1, (K-1) {q})").right for q in ("Q", "Q_robust"))
    assert robust == pytest.approx(clean * math.exp(0.5), rel=1e-9)
    assert robust == pytest.approx(4 * margin_tail(lower), rel=1e-9)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sharpness": 1.0}, "bounds of sharpness and trace need jacobian=..."),
        ({"trace": 1.0}, "bounds of sharpness and trace need jacobian=..."),
        ({"jacobian": 1.0}, "jacobian is for the bounds of .*: pass one"),
        ({"jacobian": 1.0, "sharpness": math.nan}, "sharpness must be finite, got nan"),
        ({"jacobian": -1.0, "trace": 1.0}, r"jacobian must not be negative, got -1"),
        ({"jacobian": math.inf, "trace": 1.0}, "jacobian must be finite"),
        ({"jacobian": [1.0, 2.0], "trace": 1.0}, r"number or \(20,\), got \(2,\)"),
        ({"margins": [1.0, 2.0]}, r"margins must be \(20,\), got \(2,\)"),
        ({"margins": torch.full((20,), 99.0)}, "20 robust margins are above the clean ones"),
        ({"margins": torch.full((20,), math.nan)}, "20 robust margins are above"),
        ({"bins": 0}, "bins"),
    ],
)
def test_invalid_arguments_raise_in_one_line(settings, words):
    with pytest.raises(ValueError, match=words) as error:
        population_bounds(drawn(20), **settings)
    assert "\n" not in str(error.value)


def test_the_second_theorem_needs_positive_margins():
    held = Predictions([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [5.0, 1.0]], [0, 0, 0, 0])
    with pytest.raises(ValueError, match=r"above 0, 2 of 4 are not: use population_bounds"):
        interpolation_bounds(held)
