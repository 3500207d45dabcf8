"""The result of a selection: its candidates, its table and its verdict."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.blend import blended
from calibrant.calibrators.fit_checks import convergence_remark
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.deprecated import Renamed
from calibrant.extras import need
from calibrant.metrics import Difference
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import without_warnings
from calibrant.table_values import Table, plain_html

if TYPE_CHECKING:
    import pandas

# Marks rows of the table.
UNCONVERGED, DROPPED = "  did not converge", "  dropped after two folds"


@dataclass(frozen=True)
class Candidate:
    """One calibrator of a selection, evaluated on held-out folds.

    Attributes:
        name: name in `CALIBRATORS`.
        score: the criterion over all folds.
        difference_to_best: paired difference to the best score, with its interval; None for the
            candidate with the best score.
        size: number of fitted parameters.
        keeps_argmax: whether it preserves the predicted class.
        converged: whether the search converged in every fold, and on all examples if selected.
        dropped: whether it was far behind after the first folds; score and difference are then
            estimated from these.
    """

    name: str
    score: float
    difference_to_best: Difference | None
    size: int
    keeps_argmax: bool
    converged: bool = True
    dropped: bool = False

    behind = Renamed()


@dataclass(frozen=True, repr=False)
class Selection:
    """Result of `select`; prints as a table.

    Attributes:
        name: name of the selected calibrator.
        best: the selected calibrator, fitted to all examples.
        criterion: the proper score that ranks the candidates.
        folds: number of cross-validation folds.
        candidates: best score first.
        skipped: name to reason, for those that could not be fitted.
        weights: weight and exponent of each part of `blend`, the largest first.
        remarks: what is wrong with the selected calibrator; empty if nothing is.
        examples: the predictions used.
    """

    name: str
    best: Calibrator
    criterion: str
    folds: int
    candidates: tuple[Candidate, ...]
    skipped: Mapping[str, str]
    weights: Mapping[str, tuple[float, float]]
    remarks: tuple[str, ...]
    examples: Predictions = field(compare=False)

    rows = Renamed()
    ties = Renamed()

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of `blend`, the most important first."""
        return tuple(self.weights) or (self.name,)

    @property
    def shown_weights(self) -> str:
        """The parts of `blend` with their weights in the mean, in percent."""
        shown = [
            f"{name} {weight:.0%}" for name, (weight, _) in self.weights.items() if weight > 0.005
        ]
        if more := len(self.weights) - len(shown):
            shown.append(f"and {more} in the pool alone")
        return ", ".join(shown)

    @cached_property
    def blend(self) -> Calibrator:
        """The combination of all candidates, fitted to all examples at the first access.

        Parts whose fit to all examples did not converge are left out.
        """
        fits = {n: self._fit(n) for n in self.weights}
        used = [name for name, part in fits.items() if not convergence_remark(part)]
        if not used:
            return self.best
        weights, exponents = zip(*(self.weights[name] for name in used), strict=True)
        whole, left = sum(e for _, e in self.weights.values()), sum(exponents)
        return blended(
            [fits[name] for name in used],
            [weight / sum(weights) for weight in weights] if any(weights) else (),
            [exponent * whole / left for exponent in exponents] if left else (),
        )

    def _fit(self, name: str) -> Calibrator:
        if name == self.name:
            return self.best
        with without_warnings():
            return CALIBRATORS[name].fit(self.examples)

    def __repr__(self) -> str:
        return f"Selection({len(self.candidates)} calibrators, {self.verdict})"

    def __str__(self) -> str:
        gaps = "difference to the best"
        heads = f"{'calibrator':24} {self.criterion:>8}  {gaps:28} parameters  weight"
        lines = [self._caption, heads]
        for each in self.candidates:
            gap, mark = _shown(each.difference_to_best), _mark(each)
            line = f"{each.name:24} {each.score:8.4f}  {gap:28} {each.size:10,}"
            lines.append(f"{line}{mark or f'{self._weight(each.name):>8}'}".rstrip())
        for reason in dict.fromkeys(self.skipped.values()):
            names = [name for name, each in self.skipped.items() if each == reason]
            lines.append(f"skipped: {', '.join(names)}: {reason}")
        return "\n".join([*lines, self.verdict, *(f"warning: {each}" for each in self.remarks)])

    @property
    def _caption(self) -> str:
        return f"{self.folds} folds, ranked by {self.criterion} on held-out examples"

    def _weight(self, name: str) -> str:
        """Weight in the mean of the blend, in percent; empty if it is no part."""
        return f"{self.weights[name][0]:.0%}" if name in self.weights else ""

    def _repr_html_(self) -> str:
        heads = (
            "calibrator",
            self.criterion,
            "difference to the best",
            "parameters",
            "weight",
            "converged",
            "",
        )
        rows = [
            (
                each.name,
                f"{each.score:.4f}",
                _shown(each.difference_to_best),
                f"{each.size:,}",
                self._weight(each.name),
                "yes" if each.converged else "no",
                "dropped" if each.dropped else "",
            )
            for each in self.candidates
        ]
        caption = ". ".join([self._caption, self.verdict, *self.remarks])
        return plain_html(Table.of(heads, rows, caption=caption))

    def to_pandas(self) -> "pandas.DataFrame":
        """The candidates as a data frame, best score first."""
        pandas = need("pandas", extra="pandas", what="a data frame")
        rows = []
        for each in self.candidates:
            gap = each.difference_to_best
            ends = {"difference": 0.0} if gap is None else {"difference": gap.value}
            ends |= {} if gap is None else {"low": gap.low, "high": gap.high}
            rest: dict[str, Any] = {"size": each.size, "keeps_argmax": each.keeps_argmax}
            rest |= {"weight": self.weights.get(each.name, (0.0, 0.0))[0]}
            rest |= {"converged": each.converged, "selected": each.name == self.name}
            rows.append({"calibrator": each.name, self.criterion: each.score, **ends, **rest})
        return pandas.DataFrame(rows).set_index("calibrator")

    @property
    def verdict(self) -> str:
        """One sentence: which calibrator was selected, and why."""
        first = self.candidates[0]
        own = next(each for each in self.candidates if each.name == self.name)
        if own.difference_to_best is None:
            doubt = "" if own.converged else ", although it did not converge"
            return f"selected: {self.name}, the best {self.criterion}{doubt}"
        gap = f"{self.criterion} difference {_shown(own.difference_to_best)}"
        if not first.converged:
            return f"selected: {self.name}; {first.name} did not converge ({gap})"
        return f"selected: {self.name}, of a larger prior weight than {first.name} ({gap})"

    as_dict = Renamed()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "chosen": self.name,
            "criterion": self.criterion,
            "folds": self.folds,
            "candidates": [asdict(each) for each in self.candidates],
            "skipped": dict(self.skipped),
            "parts": [
                {"name": name, "weight": weight, "exponent": exponent}
                for name, (weight, exponent) in self.weights.items()
            ],
            "remarks": list(self.remarks),
            "verdict": self.verdict,
        }


def _mark(candidate: Candidate) -> str:
    if candidate.dropped:
        return DROPPED
    return "" if candidate.converged else UNCONVERGED


def _shown(gap: Difference | None) -> str:
    return "-" if gap is None else f"{gap.value:.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
