"""The contract of every calibrator in the dict."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, Calibrator
from calibrant.data import SYNTHETIC

# Families that contain the identity: fitting cannot increase the NLL of the fitted data.
NESTED = {"temperature", "focal_temperature", "ensemble_temperature", "vector", "matrix"} | {
    "gap_temperature"
}
# For two classes these are binary problems, too.
NESTED_BINARY = NESTED | {"platt", "beta", "quadratic"}
# Not invariant to a constant added to all logits of an example.
SEES_A_SHIFT = {"vector", "matrix"}
WITH_EVERY_CLASS = {"vector", "matrix", "dirichlet", "platt", "beta", "quadratic"} | {
    "isotonic",
    "centered_isotonic",
    "venn_abers",
    "histogram",
    "spline",
    "kernel",
    "scaling_binning",
}

EXAMPLES = 1500

each = pytest.mark.parametrize("name", CALIBRATORS)


def sharpened(n: int, k: int, seed: int = 0, dtype=np.float64) -> Predictions:
    """Labels drawn from softmax(z); the model reports 2 z, shifted a little for every class."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 1.5
    labels = (logits + generator.gumbel(size=(n, k))).argmax(1)
    shift = np.linspace(-0.5, 0.5, k)
    return Predictions((2 * logits + shift).astype(dtype), labels)


@pytest.fixture(scope="module")
def fitted() -> dict[tuple[str, int], Calibrator]:
    """Every calibrator fitted to over-confident predictions of two and of four classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return {
            (name, k): CALIBRATORS[name].fit(sharpened(EXAMPLES, k))
            for name in CALIBRATORS
            for k in (2, 4)
        }


@each
@pytest.mark.parametrize("k", [2, 4])
class TestEveryCalibrator:
    def test_returns_log_probabilities_with_finite_gradients_at_any_gap(self, fitted, name, k):
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            logits = torch.randn(500, k, dtype=dtype) * 5
            logits[:k] = torch.zeros(k, k, dtype=dtype).fill_diagonal_(1e4)
            logits[k : 2 * k] = torch.zeros(k, k, dtype=dtype).fill_diagonal_(-1e-30)
            logits.requires_grad_()
            found = fitted[name, k](logits)
            assert found.dtype == dtype
            assert bool(found.isfinite().all())
            torch.testing.assert_close(
                found.exp().sum(1), torch.ones(500, dtype=dtype), atol=tolerance, rtol=0
            )
            if found.requires_grad:
                (gradient,) = torch.autograd.grad(found.sum(), logits)
                assert bool(gradient.isfinite().all())
        assert fitted[name, k](torch.zeros(0, k)).shape == (0, k)

    def test_gradients_match_finite_differences_if_parametric(self, fitted, name, k):
        calibrator = fitted[name, k]
        logits = sharpened(6, k, seed=3).logits.requires_grad_(True)
        assert calibrator.nonparametric or torch.autograd.gradcheck(calibrator.log_probs, logits)

    def test_preserves_the_predicted_class_if_it_says_so(self, fitted, name, k):
        calibrator = fitted[name, k]
        for dtype in (torch.float64, torch.float32):
            logits = torch.randn(20_000, k, dtype=dtype)
            logits *= torch.logspace(-2, 2, 20_000, dtype=dtype)[:, None]
            # Ties, and logits that differ in the last digit, are where rounding loses the class.
            logits[:2000] = logits[:2000].round()
            logits[2000:3000] = 1 + logits[2000:3000] * torch.finfo(dtype).eps
            mapped = calibrator(logits)
            if calibrator.keeps_argmax:
                assert bool((mapped.argmax(1) == logits.argmax(1)).all())
            total = mapped.double().exp().sum(1)
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)

    def test_corrects_over_confidence_on_new_examples(self, fitted, name, k):
        test = sharpened(3000, k, seed=1)
        before, after = metrics.nll(test), metrics.nll(test.map(fitted[name, k]))
        assert name == "identity" or after < before - 0.02

    def test_ignores_a_shift_of_the_logits(self, fitted, name, k):
        logits = torch.randn(100, k, dtype=torch.float64)
        moved = fitted[name, k](logits + torch.randn(100, 1, dtype=torch.float64))
        same = torch.allclose(fitted[name, k](logits), moved, atol=1e-9)
        assert same != (name in SEES_A_SHIFT)

    def test_maps_each_example_separately(self, fitted, name, k):
        # Not bit by bit: matrix products of few and of many rows add in different orders.
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            logits = torch.randn(50, k, dtype=dtype) * 5
            whole = fitted[name, k](logits)
            for size in (1, 7):
                parts = torch.cat([fitted[name, k](part) for part in logits.split(size)])
                torch.testing.assert_close(whole, parts, rtol=tolerance, atol=tolerance)

    def test_makes_tensors_contiguous(self, fitted, name, k):
        given = fitted[name, k].parameters
        tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
        strided = {key: torch.stack([each, each], -1)[..., 0] for key, each in tensors.items()}
        found = dataclasses.replace(fitted[name, k], **strided).parameters
        for key, value in tensors.items():
            assert value.is_contiguous()
            assert found[key].is_contiguous()
            assert torch.equal(found[key], value)

    def test_records_its_fit_and_is_immutable(self, fitted, name, k):
        origin = fitted[name, k].origin
        assert (origin.examples, origin.sha256) == (EXAMPLES, sharpened(EXAMPLES, k).sha256)
        assert origin.converged
        for key, entries in fitted[name, k].entry_names.items():
            assert fitted[name, k].parameters[key].shape[-1] == len(entries)
        with pytest.raises(dataclasses.FrozenInstanceError):
            fitted[name, k].classes = 7

    def test_is_shown_in_one_labelled_line(self, fitted, name, k):
        calibrator = fitted[name, k]
        shown = repr(calibrator)
        assert shown.startswith(f"{type(calibrator).__name__}(")
        assert shown.endswith(f"classes={k})")
        assert len(shown) < 250
        assert "tensor" not in shown
        html = calibrator._repr_html_()
        assert "<td>fitted to</td><td>1,500 examples</td>" in html
        for key, text in calibrator.shown_parameters.items():
            assert f"{key}=" in shown
            assert f"<td>{key}</td><td>{text}</td>" in html
            # Every number is labelled, the only one, or an end of a range.
            for entry in text.split(", "):
                assert len(entry.split()) in (1, 2, 3) or " from " in entry, entry

    def test_refuses_invalid_logits(self, fitted, name, k):
        for bad in (torch.nan, torch.inf):
            with pytest.raises(ValueError, match="logits contain NaN or inf"):
                fitted[name, k](torch.full((2, k), bad))
        with pytest.raises(ValueError, match=f"was fitted on {k} classes, got {k + 1} classes"):
            fitted[name, k](torch.zeros(3, k + 1))


@each
@pytest.mark.filterwarnings("ignore::UserWarning")
class TestEveryFit:
    def test_never_fits_worse_than_the_identity_if_it_contains_it(self, name):
        for each in SYNTHETIC:
            data = SYNTHETIC[each].sample(1000, seed=0).predictions
            if name in (NESTED if data.classes > 2 else NESTED_BINARY):
                fitted = CALIBRATORS[name].fit(data)
                assert metrics.nll(data.map(fitted)) <= metrics.nll(data) + 1e-9, each

    def test_gives_the_same_result_for_float32_and_float64(self, name):
        exact = sharpened(600, 4, dtype=np.float32)
        wide = Predictions(exact.logits.double(), exact.labels)
        probe = torch.randn(50, 4, dtype=torch.float64)
        one, two = (CALIBRATORS[name].fit(data)(probe) for data in (exact, wide))
        torch.testing.assert_close(one, two, atol=2e-5, rtol=0)

    def test_counts_a_weight_as_copies(self, name):
        data = sharpened(450, 3)
        counts = np.arange(450) % 3
        heavy = CALIBRATORS[name].fit(data.reweighted(counts))
        copied = CALIBRATORS[name].fit(data.take(np.repeat(np.arange(450), counts)))
        probe = torch.randn(50, 3, dtype=torch.float64)
        torch.testing.assert_close(heavy(probe).exp(), copied(probe).exp(), atol=2e-5, rtol=0)

    def test_hardly_changes_calibrated_predictions(self, name):
        data = SYNTHETIC["calibrated"].sample(10_000, seed=0).predictions
        moved = data.map(CALIBRATORS[name].fit(data))
        assert abs(metrics.nll(moved) - metrics.nll(data)) < (0.1 if name == "histogram" else 0.02)
        # A histogram of 15 bins is coarse whatever the data.
        assert (moved.confidence - data.confidence).abs().mean() < 0.02 or name == "histogram"

    def test_refuses_labels_of_a_single_class(self, name):
        if name != "identity":
            with pytest.raises(ValueError, match="cannot fit: labels hold a single class, 1"):
                CALIBRATORS[name].fit(Predictions(torch.randn(50, 3), torch.ones(50).long()))


@each
def test_a_class_that_never_occurs_is_refused_or_warned_of(name):
    data = sharpened(500, 4)
    data = Predictions(data.logits, data.labels.clamp_max(2))
    if name in WITH_EVERY_CLASS:
        with pytest.raises(ValueError, match="1 of 4 classes never occur: 3; use one of"):
            CALIBRATORS[name].fit(data)
    elif name != "identity":
        with pytest.warns(UserWarning, match="1 of 4 classes never occur: 3"):
            CALIBRATORS[name].fit(data)


def test_probabilities_of_zero_are_counted_and_bounded():
    probs = np.array([[1.0, 0.0], [0.3, 0.7], [0.0, 1.0], [0.6, 0.4]] * 10)
    data = Predictions.from_probs(probs, [0, 1, 1, 0] * 9 + [1, 1, 1, 0])
    with pytest.warns(UserWarning, match="20 of 80 probabilities are exactly 0: replaced by 0.07"):
        found = CALIBRATORS["temperature"].fit(data)
    assert metrics.nll(data.map(found)) < 5


def test_names_of_absent_classes_are_shown_and_many_are_counted():
    logits = torch.randn(400, 12)
    labels = (logits[:, :2] + torch.randn(400, 2)).argmax(1)
    data = Predictions(logits, labels)
    with pytest.warns(UserWarning, match="10 of 12 classes never occur: 2, 3, .*, 9 and 2 more"):
        CALIBRATORS["temperature"].fit(data)


def test_predicted_classes_of_real_logits_are_preserved(real_data):
    examples = Predictions.load(
        real_data / "logits_netcal_wideresnet164cifar100.npz",
        logits="logits_test",
        labels="labels_test",
        ignore=["*"],
    )
    for dtype in (torch.float32, torch.float64):
        data = Predictions(examples.logits.to(dtype), examples.labels)
        for name, kind in CALIBRATORS.items():
            if kind.keeps_argmax and name != "focal_temperature":
                assert torch.equal(kind.fit(data)(data.logits).argmax(1), data.predicted), name


STEPS = {"knots": [0.0, 1.0], "values": [0.2, 0.6]}
CURVE = {"knots": [[0.0, 1.0, 2.0]], "values": [[0.0, 1.0, 1.5]], "bound": 5.0}
TABLE = {"knots": [[0.0, 1.0]], "values": [[-1.0, 1.0]], "bandwidth": 0.1}
CELLS = {"edges": [0.0], "low": [0.0, 0.5], "high": [0.4, 1.0], "offsets": torch.tensor([0, 2])}
DIAGONAL = {"scale": [1.0] * 2, "bias": [1.0] * 2}
# Parameters that a constructor refuses, with the problem; lists are float64 tensors.
INVALID = [
    *(
        ("temperature", {"temperature": value}, "temperature must be positive and finite")
        for value in (0.0, -1.0, math.inf, math.nan)
    ),
    ("focal_temperature", {"temperature": 1.0, "gamma": -1.0}, "gamma must be above -1"),
    ("gap_temperature", {"temperature": 0.0, "b": 0.0}, "temperature must be positive"),
    ("gap_temperature", {"temperature": 1.0, "b": -1.1}, "b must lie between -1 and 3, got -1.1"),
    ("gap_temperature", {"temperature": 1.0, "b": math.nan}, "b must lie between -1 and 3"),
    ("ensemble_temperature", {"temperature": 0.0, "weights": [1.0, 0, 0]}, "temperature must be"),
    ("ensemble_temperature", {"temperature": 1.0, "weights": [1.0, 0]}, r"float64 of shape \(3,\)"),
    ("ensemble_temperature", {"temperature": 1.0, "weights": [0.7, 0.7, -0.4]}, "sum to 1"),
    ("ensemble_temperature", {"temperature": 1.0, "weights": [0.5, 0.4, 0.0]}, "at least 0 and su"),
    ("ensemble_temperature", {"temperature": 1.0, "weights": [math.nan, 0.5, 0.5]}, "be finite"),
    ("vector", DIAGONAL | {"bias": [1.0] * 3}, r"bias must .* shape \(2,\), got float64 \(3,\)"),
    ("matrix", DIAGONAL | {"weight": [[math.inf, 0.0]] * 2}, "weight must be finite"),
    ("structured_vector", DIAGONAL | {"temperature": 1.0, "mix": 1.0}, r"mix must lie in \[0, 1\)"),
    ("beta", {"coefficients": torch.ones(1, 3)}, r"float64 of shape \(1, 3\), got float32"),
    ("beta", {"coefficients": [[1.0] * 3] * 3}, r"shape \(1, 3\), got float64 \(3, 3\)"),
    ("beta", {"coefficients": [[math.inf] * 3]}, "must be finite"),
    ("beta", {"coefficients": [[-1.0] * 3]}, "must not be negative"),
    ("platt", {"classes": 1, "coefficients": [[1.0, 1.0]]}, "classes must be at least 2, got 1"),
    ("spline", CURVE | {"bound": 0.0}, "bound must be positive and finite, got 0"),
    ("spline", CURVE | {"knots": [[0.0, 1.0, 1.0]]}, "knots must increase within each function"),
    ("spline", CURVE | {"knots": [[0.0, 1.0]]}, r"at least 3 knots, got \(1, 2\)"),
    ("spline", CURVE | {"values": [[0.0, 1.0]]}, r"values must be float64 of shape \(1, 3\)"),
    ("spline", CURVE | {"values": [[0.0, math.inf, 1.0]]}, "values must be finite"),
    ("spline", CURVE | {"knots": [[0.0, 1e-320, 1.0]]}, "knots are too close"),
    ("top_label_spline", CURVE | {"temperature": 1.0}, r"knots must be float64 of shape \(3,\)"),
    ("top_label_spline", CURVE | {"temperature": 0.0}, "temperature must be positive"),
    ("kernel", TABLE | {"knots": [[1.0, 1.0]]}, "knots must increase within each function"),
    ("kernel", TABLE | {"values": [[1.0]]}, r"values must be float64 of shape \(1, 2\)"),
    ("kernel", TABLE | {"knots": [[]]}, r"knots must be \(m, b\), got \(1, 0\)"),
    ("kernel", TABLE | {"bandwidth": math.inf}, "bandwidth must be positive and finite, got inf"),
    ("histogram", {"edges": [[0.0]], "values": [[0.2, 1.0]]}, "strictly between 0 and 1"),
    ("histogram", {"edges": [[0.0, 1.0]], "values": [[0.2, 0.5]]}, r"edges must .* shape \(1, 1\)"),
    ("histogram", {"edges": [[1.0, 0.0]], "values": [[0.2, 0.5, 0.6]]}, "edges must not decrease"),
    ("histogram", {"edges": [[]], "values": [[]]}, r"values must be \(m, bins\)"),
    ("histogram", {"edges": [[math.inf]], "values": [[0.2, 0.5]]}, "edges must be finite"),
    (
        "scaling_binning",
        {"edges": [[0.0]], "values": [[0.2, 0.5]], "coefficients": [[1.0]]},
        r"coefficients must be float64 of shape \(1, 2\)",
    ),
    ("isotonic", STEPS | {"offsets": torch.tensor([0, 1, 2])}, "delimit 1 functions"),
    ("isotonic", STEPS | {"offsets": torch.tensor([1, 2])}, "increase from 0"),
    ("isotonic", STEPS | {"offsets": [0.0, 2.0]}, "1-D tensor of int64"),
    ("isotonic", STEPS | {"offsets": torch.tensor([0, 9])}, r"knots must .* shape \(9,\)"),
    ("isotonic", STEPS | {"knots": [1.0, 0.0]}, "knots must increase"),
    ("isotonic", STEPS | {"values": [0.6, 0.2]}, "values must not decrease"),
    ("isotonic", STEPS | {"values": [0.0, 0.2]}, "strictly between 0 and 1"),
    ("isotonic", STEPS | {"values": [0.1, math.nan]}, "values must be finite"),
    ("venn_abers", CELLS | {"offsets": torch.tensor([0, 1, 2])}, "delimit 1 functions"),
    ("venn_abers", CELLS | {"edges": []}, r"edges must .* shape \(1,\)"),
    ("venn_abers", CELLS | {"low": [0.0, 1.0]}, r"low must lie in \[0, 1\), high in \(0, 1\]"),
    ("venn_abers", CELLS | {"high": [0.0, 1.0]}, r"low must lie in \[0, 1\), high in \(0, 1\]"),
    ("venn_abers", CELLS | {"high": [0.4, 0.3]}, "high must not decrease"),
    (
        "venn_abers",
        {"edges": [1.0, 0.0], "low": [0.0] * 3, "high": [1.0] * 3, "offsets": torch.tensor([0, 3])},
        "edges must not decrease",
    ),
    ("irm", STEPS | {"slope": 0.0}, "slope must lie between 0 and 1"),
    ("irm", STEPS | {"slope": 0.1, "knots": []}, r"knots must be \(b,\)"),
    ("irm", STEPS | {"slope": 0.1, "knots": [0.0, 0.0]}, "knots must increase"),
]


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("name", "given", "problem"), INVALID)
def test_invalid_parameters_are_refused(name, given, problem):
    tensors = {
        key: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
        for key, value in given.items()
    }
    if name == "isotonic":
        tensors = {"offsets": torch.tensor([0, 2])} | tensors
    if name == "matrix":
        del tensors["scale"]
    with pytest.raises(ValueError, match=problem):
        CALIBRATORS[name](**{"classes": 2} | tensors)
