"""Vector, matrix, Dirichlet and structured scaling: exact optima, limits, refusals."""

import tracemalloc

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    CALIBRATORS,
    DirichletCalibration,
    MatrixScaling,
    StructuredMatrixScaling,
    TemperatureScaling,
    VectorScaling,
    select,
    vector_matrix,
)
from calibrant.calibrators.affine import Data, Ridge, fit_diagonal, fit_full
from calibrant.calibrators.structured import mix_uniform


def drawn(n: int, k: int, seed: int = 0) -> Predictions:
    """Labels from an affine map of the logits."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 2
    true = logits @ (np.eye(k) * 0.5 + generator.normal(size=(k, k)) * 0.1)
    true += generator.normal(size=k) * 0.5
    return Predictions(logits, (true + generator.gumbel(size=(n, k))).argmax(1))


def penalised(data: Predictions, scores: np.ndarray, ridge: Ridge, *, full: bool):
    """The objective as it is written, for a slow search."""
    k = data.classes
    x, y = torch.from_numpy(scores), data.labels

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(flat, requires_grad=True)
        change = free[:-k].reshape(k, k) if full else torch.diag(free[:-k])
        bias = free[-k:]
        off = change - torch.diag(change.diagonal())
        value = torch.nn.functional.cross_entropy(x + x @ change.T + bias, y)
        value = value + ridge.bias * (bias**2).sum() + ridge.off_diagonal * (off**2).sum()
        value = value + ridge.diagonal * (change.diagonal() ** 2).sum()
        value.backward()
        return float(value.detach()), free.grad.numpy()

    return loss


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("ridge", [Ridge(), Ridge(0.01, 0.02, 0.1)], ids=["plain", "ridge"])
def test_the_solver_finds_the_minimum_of_the_objective(full, ridge):
    data = drawn(1500, 4)
    scores = data.log_probs.numpy()
    held = Data(scores, data.labels.numpy(), np.full(1500, 1 / 1500))
    found = (fit_full if full else fit_diagonal)(held, ridge)
    loss = penalised(data, scores, ridge, full=full)
    weight = found.weight - (np.eye(4) if full else 1)
    ours, gradient = loss(np.concatenate([weight.ravel(), found.bias]))
    size = (16 if full else 4) + 4
    slow = minimize(loss, np.zeros(size), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert ours <= slow.fun + 1e-10
    assert np.abs(gradient).max() < 1e-5
    assert found.converged


def test_the_two_stage_search_of_large_data_agrees_with_the_exact_one(monkeypatch):
    data = drawn(4000, 5)
    exact = MatrixScaling.fit(data)
    monkeypatch.setattr("calibrant.calibrators.affine.SMALL", 100)
    monkeypatch.setattr("calibrant.calibrators.affine.ELEMENTS", 999)
    rough = MatrixScaling.fit(data)
    gap = metrics.nll(data.map(rough)) - metrics.nll(data.map(exact))
    assert abs(gap) < 1e-7


def test_matrix_scaling_is_multinomial_regression_on_the_logits():
    data = drawn(3000, 3)
    other = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    other.fit(data.logits.numpy(), data.labels.numpy())
    ours = data.map(MatrixScaling.fit(data)).probs.numpy()
    np.testing.assert_allclose(ours, other.predict_proba(data.logits.numpy()), atol=2e-4)


def test_vector_scaling_recovers_planted_factors_and_biases():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(50_000, 3)) * 2
    scale, bias = np.array([0.4, 0.6, 0.8]), np.array([0.5, 0.0, -0.5])
    labels = (logits * scale + bias + generator.gumbel(size=logits.shape)).argmax(1)
    found = VectorScaling.fit(Predictions(logits, labels))
    np.testing.assert_allclose(found.scale.numpy(), scale, atol=0.03)
    np.testing.assert_allclose((found.bias - found.bias.mean()).numpy(), bias, atol=0.03)


@pytest.mark.parametrize("first", ["", "focal_"])
@pytest.mark.parametrize("kind", ["vector", "matrix"])
def test_a_large_penalty_gives_the_first_step_alone(kind, first):
    data = drawn(1000, 4)
    names = ("diagonal", "bias") + (("off_diagonal",) if kind == "matrix" else ())
    found = CALIBRATORS[f"{first}structured_{kind}"].fit(data, **dict.fromkeys(names, 1e9))
    plain = CALIBRATORS[f"{first}temperature"].fit(data)
    assert found.temperature == pytest.approx(plain.temperature)
    assert getattr(found, "gamma", 0) == getattr(plain, "gamma", 0)
    mixed_plain = mix_uniform(plain(data.logits), 1 / 1001)
    torch.testing.assert_close(found(data.logits), mixed_plain, atol=1e-5, rtol=0)


def test_without_penalty_it_is_matrix_scaling_of_log_probabilities():
    data = drawn(3000, 3)
    free = StructuredMatrixScaling.fit(data, diagonal=0.0, off_diagonal=0.0, bias=0.0)
    same = Predictions(data.log_probs, data.labels)
    gap = metrics.nll(data.map(free)) - metrics.nll(same.map(MatrixScaling.fit(same)))
    assert abs(gap) < 2e-4


def test_regularisation_helps_with_few_examples():
    both = drawn(10_000, 12)
    data, test = both.take(np.arange(300)), both.take(np.arange(300, 10_000))
    scores = {
        kind: metrics.nll(test.map(kind.fit(data)))
        for kind in (TemperatureScaling, MatrixScaling, StructuredMatrixScaling)
    }
    assert scores[StructuredMatrixScaling] < scores[TemperatureScaling] < scores[MatrixScaling]


def test_dirichlet_penalties_are_means_over_entries_of_its_own_matrix():
    data = drawn(1000, 3)
    strong = DirichletCalibration.fit(data, off_diagonal=1e6, bias=1e6)
    off = strong.weight - torch.diag(strong.weight.diagonal())
    assert float(off.abs().max()) < 1e-4
    assert float(strong.bias.abs().max()) < 1e-4
    weak = DirichletCalibration.fit(data, off_diagonal=0.3, bias=0.2)
    loss = penalised(data, data.log_probs.numpy(), Ridge(0.2 / 3, 0.0, 0.3 / 6), full=True)
    _, gradient = loss(np.concatenate([(weak.weight - torch.eye(3)).numpy().ravel(), weak.bias]))
    assert np.abs(gradient).max() < 1e-5


@pytest.mark.parametrize("kind", [MatrixScaling, DirichletCalibration])
def test_more_parameters_than_examples_are_refused(kind):
    with pytest.raises(ValueError, match=r"a 12 x 12 .* at least 156 examples, got 100; structur"):
        kind.fit(drawn(100, 12))


def test_a_search_without_convergence_warns(monkeypatch):
    monkeypatch.setattr("calibrant.calibrators.affine.STEPS", 1)
    with pytest.warns(UserWarning, match="no convergence, gradient norm"):
        found = VectorScaling.fit(drawn(500, 4))
    assert not found.origin.converged


def test_negative_penalties_are_refused():
    for name in ("diagonal", "off_diagonal", "bias"):
        with pytest.raises(ValueError, match=f"{name} must be at least 0 and finite, got -1"):
            StructuredMatrixScaling.fit(drawn(100, 3), **{name: -1.0})


MATRICES = ["matrix", "dirichlet", "structured_matrix", "focal_structured_matrix"]


@pytest.mark.filterwarnings("ignore:.*classes never occur")
def test_matrices_beyond_the_memory_limit_are_refused_before_any_is_allocated():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 10_000)).astype(np.float32) * 3
    many = Predictions(logits, generator.integers(0, 10_000, 300))
    words = "10,000 x 10,000 .* about 48.4 GB of memory, the limit is 2.0 GB; use vector"
    for name in MATRICES:
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=words):
                CALIBRATORS[name].fit(many)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A single matrix of float64 would be 800 MB.
        assert peak < 10 * 2**20
    found = select(many, candidates=["identity", *MATRICES], folds=2, resamples=20)
    assert (found.name, list(found.skipped)) == ("identity", MATRICES)
    words = f"skipped: {', '.join(MATRICES)}: fitting a matrix of 10,000 x 10,000"
    assert words in str(found)
    vector_matrix.refuse_large(2000)
    with pytest.raises(ValueError, match="2,100 x 2,100"):
        vector_matrix.refuse_large(2100)


@pytest.mark.parametrize("name", MATRICES)
def test_the_limit_is_on_the_memory_of_a_fit(name, monkeypatch):
    needed = 8 * vector_matrix.COPIES * 4 * 5
    monkeypatch.setattr(vector_matrix, "MAX_BYTES", needed)
    CALIBRATORS[name].fit(drawn(400, 4))
    monkeypatch.setattr(vector_matrix, "MAX_BYTES", needed - 1)
    with pytest.raises(ValueError, match="fitting a matrix of 4 x 4 classes needs about"):
        CALIBRATORS[name].fit(drawn(400, 4))


def test_the_penalty_of_structured_matrix_scaling_vanishes_with_many_examples():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
    true = logits @ torch.tensor([[2.0, 1, 0], [0, 2, 1], [1, 0, 2]]).double().T
    labels = torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0]
    data = Predictions(logits, labels)
    plain, free, structured = (
        metrics.nll(data.map(calibrator.fit(data)))
        for calibrator in (TemperatureScaling, MatrixScaling, StructuredMatrixScaling)
    )
    assert plain > free + 0.02
    assert structured == pytest.approx(free, abs=1e-3)


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling, DirichletCalibration])
def test_a_fit_to_correct_predictions_only_has_not_converged(kind):
    data = drawn(300, 3)
    correct = Predictions(data.logits, data.logits.argmax(1))
    with pytest.warns(UserWarning, match="no finite optimum: every prediction is correct") as given:
        found = kind.fit(correct)
    assert len(given) == 1
    assert not found.origin.converged
    # A wrong prediction without weight does not count, one with a weight does.
    labels = correct.labels.clone()
    labels[0] = (labels[0] + 1) % 3
    wrong = Predictions(data.logits, labels)
    assert kind.fit(wrong).origin.converged
    with pytest.warns(UserWarning, match="no finite optimum"):
        kind.fit(wrong.reweighted(np.arange(300) > 0))
