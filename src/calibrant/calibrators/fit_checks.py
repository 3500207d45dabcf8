"""What went wrong in a fit, from the examples of the fit."""

from calibrant import metrics
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.blend import Blend
from calibrant.calibrators.one_versus_rest import OneVersusRest
from calibrant.calibrators.temperature import Identity
from calibrant.predictions import Predictions

# A relative increase of the NLL beyond rounding.
ROUNDING = 1e-6
# Enough for the ends of a 95 % interval.
RESAMPLES = 400
# What it means if the NLL rose: of a fit that could have left it as it was, and of others.
FAILED = "do not use this fit"
_WHY_NOT = "its functions are fitted separately and do not minimise the NLL"


def fit_remarks(calibrator: Calibrator, predictions: Predictions) -> tuple[str, ...]:
    """Compare a calibrator with the identity on the examples of its fit; no remarks are good.

    - It did not converge: a parameter is at its bound, or the search ended early.
    - The NLL rose, by any margin. Most calibrators contain the identity, so this is a failure of
      the fit; it can happen by design for several classes one versus rest, and for non-parametric
      ones.
    - The ECE rose by more than sampling noise: the 95 % interval of the paired difference of
      `debiased_ece` lies above zero.

    Both sides replace probabilities of 0 by the floor of the fit.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(3000, seed=0).predictions
        >>> fit_remarks(TemperatureScaling.fit(p), p)
        ()
        >>> fit_remarks(TemperatureScaling(classes=2, temperature=0.5), p)[0]
        'NLL rose from 0.5794 to 0.9263 on the data of the fit: do not use this fit'
    """
    before = predictions.map(Identity(classes=calibrator.classes, origin=calibrator.origin))
    advice = FAILED if _contains_identity(calibrator) else _WHY_NOT
    rises = rise_remarks(before, predictions.map(calibrator), advice)
    remark = convergence_remark(calibrator)
    return (remark, *rises) if remark else rises


def rise_remarks(before: Predictions, after: Predictions, advice: str = FAILED) -> tuple[str, ...]:
    """Say whether a fit raised the NLL, with what that means, or the ECE of its examples."""
    found = []
    nll = metrics.nll(before), metrics.nll(after)
    if nll[1] > nll[0] * (1 + ROUNDING):
        found.append(f"NLL rose from {nll[0]:.4f} to {nll[1]:.4f} on the data of the fit: {advice}")
    if metrics.debiased_ece(after) > metrics.debiased_ece(before):
        rise = metrics.compare(metrics.debiased_ece, after, before, resamples=RESAMPLES)
        if rise.low > 0:
            ece = metrics.ece(before), metrics.ece(after)
            found.append(
                f"ECE rose from {ece[0]:.4f} to {ece[1]:.4f} on the data of the fit, more than "
                f"sampling noise (debiased {rise.value:+.4f} [{rise.low:+.4f}, {rise.high:+.4f}])"
            )
    return tuple(found)


def convergence_remark(calibrator: Calibrator) -> str:
    """Say why a fit did not converge; empty if it did."""
    origin = calibrator.origin
    return "" if origin is None or origin.converged else f"did not converge: {origin.remark}"


def _contains_identity(calibrator: Calibrator) -> bool:
    if isinstance(calibrator, Blend):
        return all(map(_contains_identity, calibrator.parts))
    one_versus_rest = isinstance(calibrator, OneVersusRest) and calibrator.classes > 2
    return not (one_versus_rest or calibrator.nonparametric)
