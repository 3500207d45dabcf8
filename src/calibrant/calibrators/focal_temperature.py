"""Focal temperature scaling: a temperature, then the focal calibration map."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from calibrant import metrics
from calibrant.calibrators.base import Calibrator, fitting_logits, made_from
from calibrant.calibrators.blas_threads import one_thread_each
from calibrant.calibrators.focal_gradients import Objective, focal_objective
from calibrant.calibrators.focal_map import check_gamma, focal_map
from calibrant.calibrators.shared_steps import once
from calibrant.calibrators.temperature import best_inverse, check_temperature
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn, without_warnings
from calibrant.shapes import Logits

Criterion = Literal["nll", "brier", "ece", "adaptive_ece"]
CRITERIA: dict[str, Callable[[Predictions], float]] = {
    "nll": metrics.nll,
    "brier": metrics.brier,
    "ece": metrics.ece,
    "adaptive_ece": metrics.adaptive_ece,
}
# The published grid; gamma 0, which is temperature scaling, is part of it.
GRID_GAMMAS = (-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 3.0, 5.0)
GRID_TEMPERATURES = tuple(round(0.05 * step, 2) for step in range(1, 101))
# Below -0.55 the map resembles that of a larger gamma; above 10 it hardly changes.
LOWEST_GAMMA, HIGHEST_GAMMA = -0.95, 10.0
STARTS = (-0.25, 1.0, 4.0)
# Scores (n times k) of the subsample on which the starts are compared, and how closely.
ROUGH, CLOSE = 1 << 14, 1e-5
# Grid points from which a criterion without derivatives is refined.
POLISHED = 3


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FocalTemperatureScaling(Calibrator):
    r"""Divide the logits by T, then apply the focal map; preserves the predicted class.

    $$\log q = \log \Phi_\gamma(\mathrm{softmax}(z / T))$$

    The two steps do not commute. `gamma = 0` is temperature scaling, which is always among the
    candidates, so the criterion is never worse on the fitted data. Unlike a lower temperature it
    preserves the ratios of unlikely classes.

    With two classes it is equivalent to a temperature, and (gamma, T) are not identifiable.

    References:
        Komisarenko and Kull, Improving Calibration by Relating Focal Loss, Temperature Scaling,
            and Properness, ECAI 2024, arXiv:2408.11598.
    """

    temperature: float
    gamma: float

    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        check_gamma(self.gamma)

    @classmethod
    def fit(
        cls,
        predictions: Predictions,
        *,
        criterion: Criterion = "nll",
        search: Literal["exact", "grid"] = "exact",
        gammas: Sequence[float] | None = None,
        temperatures: Sequence[float] | None = None,
    ) -> "FocalTemperatureScaling":
        """Fit gamma and T.

        Args:
            predictions: held-out examples.
            criterion: what to minimise. NLL is minimised by L-BFGS; the others, which have no
                gradient, by Nelder-Mead from the best points of a grid.
            search: "exact", with gamma in [-0.95, 10], or "grid": the best point of a grid.
            gammas: gammas of the grid; the published ones by default. 0 is always added.
            temperatures: temperatures of the grid; the published 0.05, 0.10, ..., 5.00 by default.
        """
        if criterion not in CRITERIA:
            raise ValueError(f"criterion must be one of {list(CRITERIA)}, got {criterion!r}")
        if search not in ("exact", "grid"):
            raise ValueError(f"search must be 'exact' or 'grid', got {search!r}")
        if predictions.classes == 2:
            warn(
                "with two classes gamma and temperature are not identifiable: "
                "use temperature scaling, which is equivalent",
                stacklevel=2,
            )
        logits, exact = fitting_logits(predictions), search == "exact"
        gradient, remark = 0.0, ""
        if exact and criterion == "nll":
            inverse, gamma, gradient, remark = best_focal(predictions, logits)
            temperature = 1 / inverse
        else:
            # Logits of probabilities are computed once, not at each point.
            same = predictions.map(lambda _: logits)
            temperature, gamma = _by_grid(same, criterion, gammas, temperatures, polish=exact)
        return cls(
            classes=predictions.classes,
            temperature=temperature,
            gamma=gamma,
            origin=made_from(predictions, gradient, remark),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Divide, and map."""
        return focal_map(logits / self.temperature, self.gamma)


def focal_landscape(
    predictions: Predictions,
    *,
    criterion: Criterion = "nll",
    gammas: Sequence[float] = GRID_GAMMAS,
    temperatures: Sequence[float] = GRID_TEMPERATURES,
) -> np.ndarray:
    """Evaluate the criterion on a grid, (gammas, temperatures)."""
    for value in gammas:
        check_gamma(value)
    for value in temperatures:
        check_temperature(value)
    if criterion == "nll":
        logits, labels = fitting_logits(predictions).numpy(), predictions.labels.numpy()
        loss_at = focal_objective(logits, labels, predictions.example_weights)
        return np.array([[loss_at(1 / t, gamma)[0] for t in temperatures] for gamma in gammas])
    score = _score(predictions.with_zero_floor(predictions.estimated_zero_floor), criterion)
    return np.array([[score(t, gamma) for t in temperatures] for gamma in gammas])


def _score(predictions: Predictions, criterion: str) -> Callable[[float, float], float]:
    def score(temperature: float, gamma: float) -> float:
        mapped = predictions.map(lambda logits: focal_map(logits / temperature, gamma))
        # Equal-mass bins warn of tied confidences, which are common at extreme points.
        with without_warnings():
            return CRITERIA[criterion](mapped)

    return score


# 1/T may differ from that of temperature scaling by at most a factor of a thousand.
SPAN = math.log(1000)
UNBOUNDED = "no optimum: the examples are nearly separable; temperature scaling is used"


@once
@one_thread_each()
def best_focal(predictions: Predictions, logits: Logits) -> tuple[float, float, float, str]:
    """Minimise the NLL; return 1/T, gamma, gradient norm, remark."""
    values, labels = logits.numpy(), predictions.labels.numpy()
    weights = predictions.example_weights
    plain = best_inverse(predictions, logits)
    alone = plain.inverse, 0.0, abs(plain.derivatives.first)
    if not plain.converged:
        return *alone, plain.remark
    part = slice(None, None, math.ceil(values.size / ROUGH))
    rough = focal_objective(values[part], labels[part], weights[part])
    # The best temperature for a fixed gamma is nearly linear in gamma.
    starts = [(0.0, plain.inverse), *((g, plain.inverse / (1 + g / 3)) for g in STARTS)]
    some = [_descend(rough, *start, gain=CLOSE) for start in starts]
    best = min(some, key=lambda found: found[0])
    objective = focal_objective(values, labels, weights)
    best = _descend(objective, best[2], best[1])
    if abs(math.log(best[1] / plain.inverse)) >= SPAN:
        # Nearly separable data: the loss decreases as gamma approaches -1 and 1/T grows.
        return *alone, UNBOUNDED
    if not best[0] < objective(plain.inverse, 0.0)[0]:
        return *alone, ""
    at_bound = not LOWEST_GAMMA < best[2] < HIGHEST_GAMMA
    return best[1], best[2], best[3], f"gamma hit the bound {best[2]:g}" if at_bound else ""


def _descend(
    objective: Objective, gamma: float, inverse: float, *, gain: float = 1e-15
) -> tuple[float, float, float, float]:
    """Minimise by L-BFGS-B until the relative decrease is below `gain`.

    Returns the loss, 1/T, gamma, and the norm of the gradient along parameters not at a bound.
    """

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(math.exp(point[0]), point[1])
        return value, gradient * [math.exp(point[0]), 1.0]

    near = math.log(inverse)
    found = minimize(
        loss,
        [near, gamma],
        jac=True,
        method="L-BFGS-B",
        bounds=[(near - 2 * SPAN, near + 2 * SPAN), (LOWEST_GAMMA, HIGHEST_GAMMA)],
        options={"ftol": gain, "gtol": 1e-8, "maxiter": 100},
    )
    # At a bound of gamma only the derivative along the temperature has to vanish.
    free = [True, LOWEST_GAMMA < found.x[1] < HIGHEST_GAMMA]
    norm = float(np.linalg.norm(found.jac[free]))
    return float(found.fun), math.exp(found.x[0]), float(found.x[1]), norm


def _by_grid(
    predictions: Predictions,
    criterion: Criterion,
    gammas: Sequence[float] | None,
    temperatures: Sequence[float] | None,
    *,
    polish: bool,
) -> tuple[float, float]:
    """Best (T, gamma) of a grid, the first of ties; refined by Nelder-Mead if `polish`."""
    gammas = sorted({0.0, *(GRID_GAMMAS if gammas is None else gammas)})
    temperatures = sorted(GRID_TEMPERATURES if temperatures is None else temperatures)
    if not temperatures:
        raise ValueError("temperatures of the grid: need at least one")
    values = focal_landscape(
        predictions, criterion=criterion, gammas=gammas, temperatures=temperatures
    )
    lowest = np.argsort(values, axis=None, kind="stable")[: POLISHED if polish else 1]
    points = [
        (float(temperatures[at % len(temperatures)]), float(gammas[at // len(temperatures)]))
        for at in lowest.tolist()
    ]
    if not polish:
        return points[0]
    score = _score(predictions, criterion)
    # The best point of temperature scaling, refined along the temperature alone.
    plain = gammas.index(0.0)
    start = float(temperatures[int(values[plain].argmin())])
    alone = _simplex(lambda point: score(math.exp(point[0]), 0.0), [math.log(start)])
    best = (alone.fun, math.exp(alone.x[0]), 0.0)
    for temperature, gamma in points:
        found = _simplex(
            lambda point: score(math.exp(point[0]), point[1]), [math.log(temperature), gamma]
        )
        best = min(best, (found.fun, math.exp(found.x[0]), float(found.x[1])))
    return best[1], best[2]


def _simplex(score: Callable[[np.ndarray], float], start: list[float]) -> OptimizeResult:
    """Minimise a piecewise constant function near the start; never ends above it."""
    return minimize(
        score,
        start,
        method="Nelder-Mead",
        bounds=[(None, None), (LOWEST_GAMMA, HIGHEST_GAMMA)][: len(start)],
        options={"xatol": 1e-4, "fatol": 1e-8, "maxfev": 100},
    )
