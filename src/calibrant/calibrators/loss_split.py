"""A proper score split into what recalibration can remove and what it cannot."""

from dataclasses import dataclass

import torch

from calibrant import metrics
from calibrant.calibrators.fit_checks import convergence_remark
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.selection import CRITERIA, fold_of
from calibrant.metrics import METRICS, Difference
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn, without_warnings
from calibrant.setting_errors import did_you_mean
from calibrant.table_values import Table, plain_html


@dataclass(frozen=True, repr=False)
class LossSplit:
    """Result of `split_loss`: total = calibration + refinement; prints as a table.

    Attributes:
        score: name of the proper score, "nll" or "brier".
        calibrator: name of the calibrator in `CALIBRATORS`.
        folds: number of folds.
        total: mean score of the predictions as they are; a probability of 0 counts as
            `Predictions.estimated_zero_floor`.
        refinement: mean score after recalibration, each example by a fit to the other folds.
        gain: total minus refinement, with its paired bootstrap interval and p-value.
    """

    score: str
    calibrator: str
    folds: int
    total: float
    refinement: float
    gain: Difference

    @property
    def calibration(self) -> float:
        """The part that recalibration removes; below 0, it does not help."""
        return self.gain.value

    @property
    def verdict(self) -> str:
        """Whether recalibration lowers the score."""
        if self.gain.low > 0:
            fraction = f" by {self.calibration / self.total:.1%}" if self.total > 0 else ""
            return f"{self.calibrator} lowers the {METRICS[self.score].label}{fraction}"
        harm = "raises" if self.gain.high < 0 else "does not significantly lower"
        return f"{self.calibrator} {harm} the {METRICS[self.score].label}"

    def __repr__(self) -> str:
        return (
            f"LossSplit({self.score} {self.total:.4f} = calibration {self.calibration:.4f} + "
            f"refinement {self.refinement:.4f}, {self.calibrator})"
        )

    def __str__(self) -> str:
        lines = [f"{self.score} split by {self.calibrator}, {self.folds} folds"]
        lines += [f"{name:12} {value:>8}   {ends}".rstrip() for name, value, ends in self._rows]
        return "\n".join([*lines, self.verdict])

    def _repr_html_(self) -> str:
        heads = ("part", self.score, f"{self.gain.level:.0%} interval")
        caption = f"{self.verdict} ({self.folds} folds)"
        return plain_html(Table.of(heads, self._rows, numbers=heads[1:], caption=caption))

    @property
    def _rows(self) -> list[tuple[str, str, str]]:
        ends = f"{self.gain.low:.4f} to {self.gain.high:.4f}"
        return [
            ("total", f"{self.total:.4f}", ""),
            ("calibration", f"{self.calibration:.4f}", ends),
            ("refinement", f"{self.refinement:.4f}", ""),
        ]


def split_loss(
    predictions: Predictions,
    *,
    score: str = "nll",
    calibrator: str = "temperature",
    folds: int = 5,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> LossSplit:
    r"""Split a proper score into a calibration and a refinement part, by recalibration.

    $$\underbrace{\frac1n \sum_i \ell(p_i, y_i)}_{\text{total}} =
      \underbrace{\frac1n \sum_i \bigl(\ell(p_i, y_i) - \ell(g_{-i}(p_i), y_i)\bigr)}_{
        \text{calibration}} +
      \underbrace{\frac1n \sum_i \ell(g_{-i}(p_i), y_i)}_{\text{refinement}}$$

    with the calibrator $g_{-i}$ fitted to the folds without example i. Refinement is what
    recalibration cannot improve: compare models, or epochs of a training, by it if they are
    calibrated later. Both parts depend on the kind of calibrator: errors that temperature scaling
    cannot repair count as refinement. As the fit is cross-fitted it is not optimistic, and the
    calibration part can be negative: then recalibration does not help.

    Args:
        predictions: held-out examples, not the training data of the network.
        score: "nll" or "brier".
        calibrator: name in `CALIBRATORS`.
        folds: number of folds; groups are not split.
        level: coverage of the interval.
        resamples: paired bootstrap resamples.
        seed: seed of the folds and of the bootstrap.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> split_loss(SYNTHETIC["tempered"].sample(3000, seed=0).predictions, resamples=100)
        LossSplit(nll 0.5794 = calibration 0.0743 + refinement 0.5051, temperature)

    References:
        Berta et al., Rethinking Early Stopping: Refine, Then Calibrate, 2025, arXiv:2501.19195.
    """
    if score not in CRITERIA:
        raise ValueError(f"score must be proper, got {score!r}; {did_you_mean(score, CRITERIA)}")
    if calibrator not in CALIBRATORS:
        raise ValueError(f"no calibrator {calibrator!r}; {did_you_mean(calibrator, CALIBRATORS)}")
    after, remarks = cross_fitted(predictions, calibrator, folds=folds, seed=seed)
    if remarks:
        warn(f"{calibrator} in {len(remarks)} of {folds} folds: {remarks[0]}", stacklevel=2)
    measure = CRITERIA[score]
    before = predictions.map(CALIBRATORS["identity"].fit(predictions))
    gain = metrics.compare(measure, before, after, level=level, resamples=resamples, seed=seed)
    return LossSplit(score, calibrator, folds, measure(before), measure(after), gain)


def cross_fitted(
    predictions: Predictions, calibrator: str, *, folds: int = 5, seed: int = 0
) -> tuple[Predictions, list[str]]:
    """Predictions of which each is calibrated by a fit to the other folds; failures of the fits."""
    kind, fold = CALIBRATORS[calibrator], fold_of(predictions, folds=folds, seed=seed)
    mapped = torch.empty(len(predictions), predictions.classes, dtype=torch.float64)
    remarks: list[str] = []
    with without_warnings():
        for number in range(folds):
            out = fold == number
            fitted = kind.fit(predictions.take(~out))
            mapped[torch.from_numpy(out)] = predictions.take(out).map(fitted).logits.double()
            remarks += filter(None, [convergence_remark(fitted)])
    return predictions.map(lambda _: mapped), remarks
