"""Class priors of deployment, for `calibrant apply`: given, or estimated from a file."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calibrant.cli import options, screen

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator, PriorEstimate, PriorShift
    from calibrant.calibrators.base import Fit
    from calibrant.calibrators.priors import Prior
    from calibrant.calibrators.storage import OfColumns
    from calibrant.predictions import Predictions

# Those of `calibrators.prior_estimation`, which is too heavy to load for --help.
METHODS = ("em", "bbse", "bbse_soft")
# Rows of the table of priors.
SHOWN = 20
WRITTEN = "one number for two classes (0.1), a number for each class (0.2,0.3,0.5), or by name"
WRITTEN += " (cat=0.2,dog=0.8)"

of_priors = options.panel("Other class priors")
Known = Annotated[
    str | None, of_priors("--prior", metavar="P", help=f"Class priors of FILE: {WRITTEN}.")
]
Unlabelled = Annotated[
    str | None,
    of_priors(
        "--estimate-prior",
        metavar="FILE",
        help="Estimate them from these predictions; labels are not used.",
    ),
]
Method = Annotated[
    str | None,
    of_priors(
        "--prior-method",
        metavar="NAME",
        help=f"Of the estimate: {', '.join(METHODS)}; default: em. Others than em need "
        "--source-predictions.",
    ),
]
SourcePrior = Annotated[
    str | None,
    of_priors(
        "--source-prior",
        metavar="P",
        help="Class priors that the scores are calibrated for; default: those of the fit.",
    ),
]
SourcePredictions = Annotated[
    str | None,
    of_priors(
        "--source-predictions", metavar="FILE", help="Labelled predictions, such as of the fit."
    ),
]
Saved = Annotated[
    Path | None,
    of_priors(
        "--save-calibrator",
        metavar="PATH",
        help="Also write the calibrator with its change of priors, .json.",
    ),
]


@dataclass(frozen=True)
class PriorOptions:
    """The options as they were given."""

    known: str | None
    unlabelled: str | None
    method: str | None
    source: str | None
    source_predictions: str | None
    saved: Path | None

    def __post_init__(self) -> None:
        if self.known is not None and self.unlabelled is not None:
            raise ValueError("give --prior or --estimate-prior, not both")
        if self.method is not None and self.unlabelled is None:
            raise ValueError("--prior-method is for --estimate-prior")
        others = {
            "--source-prior": self.source,
            "--source-predictions": self.source_predictions,
            "--save-calibrator": self.saved,
        }
        for name, value in others.items():
            if value is not None and not self.given:
                raise ValueError(f"{name} is for --prior or --estimate-prior")
        if self.source is not None and self.source_predictions is not None:
            raise ValueError("give --source-prior or --source-predictions, not both")
        if self.saved is not None and self.saved.suffix.lower() != ".json":
            raise ValueError(f"cannot write {self.saved}: calibrators are saved as .json")

    @property
    def given(self) -> bool:
        """Whether priors are to be changed."""
        return self.known is not None or self.unlabelled is not None

    def refuse(self, what: str) -> None:
        """Refuse any of the options, for something that has no class priors."""
        if self.given:
            raise ValueError(f"{what} takes no --prior and no --estimate-prior")

    def first_of(
        self, fitted: "Calibrator | OfColumns"
    ) -> "tuple[Calibrator | OfColumns, tuple[float, ...] | None]":
        """The calibrator to apply first, and the class priors of its fit, if known.

        New priors replace those of a file that has some.
        """
        from calibrant.calibrators import MultiCalibrator, PriorShift, SlicedCalibrator

        if self.given and isinstance(fitted, PriorShift):
            return fitted.calibrator, tuple(fitted.source.tolist())
        if self.saved is not None and isinstance(fitted, SlicedCalibrator | MultiCalibrator):
            what = "slices" if isinstance(fitted, SlicedCalibrator) else "columns"
            raise ValueError(f"a calibrator of {what} cannot be saved with new priors")
        return fitted, None if fitted.origin is None else fitted.origin.class_frequencies

    def change(
        self,
        calibrated: "Callable[[str, bool], Predictions]",
        classes: int,
        source: tuple[float, ...] | None,
        class_names: tuple[str, ...] | None,
        origin: "Fit | None" = None,
    ) -> "ChangeOfPriors":
        """Find the priors of the source and of the target.

        Args:
            calibrated: reads a file, with labels or without, and applies the first calibrator.
            classes: number of classes.
            source: class priors of the fit, if known.
            class_names: names of the classes.
            origin: the fit; priors that are its class frequencies are estimates, too.
        """
        from calibrant.calibrators import Identity, PriorShift, estimate_prior
        from calibrant.calibrators.base import class_frequencies

        labelled = self.source_predictions and calibrated(self.source_predictions, True)
        prior: Any
        examples = None
        if self.source is not None:
            prior = _priors_of("--source-prior", self.source, classes, class_names)
        else:
            examples = None if labelled else _examples_of(source, origin)
            prior = class_frequencies(labelled) if labelled else source
        if prior is None:
            raise ValueError(
                "the calibrator file does not hold class frequencies of its fit (more than 1,000 "
                "classes, or an earlier release): add --source-prior or --source-predictions"
            )
        estimate, target = None, None
        if self.known is not None:
            target = _priors_of("--prior", self.known, classes, class_names)
        elif self.unlabelled is not None:
            method: Any = self.method or METHODS[0]
            if method in METHODS[1:] and labelled is None:
                raise ValueError(
                    f"{method} needs the labels of the source: add --source-predictions"
                )
            unlabelled = calibrated(self.unlabelled, False)
            with screen.working("estimating priors"):
                estimate = estimate_prior(
                    unlabelled, labelled or prior, method=method, source_examples=examples
                )
            target = estimate.prior
        identity = Identity(classes=classes)
        shift = PriorShift.of_priors(prior, target, calibrator=identity, class_names=class_names)
        return ChangeOfPriors(shift, estimate, class_names)


@dataclass(frozen=True)
class ChangeOfPriors:
    """What is applied after the calibrator, and how its priors were found."""

    shift: "PriorShift"
    estimate: "PriorEstimate | None"
    class_names: tuple[str, ...] | None

    @property
    def record(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found: dict[str, Any] = {
            "method": "known" if self.estimate is None else self.estimate.method,
            "source": self.shift.source.tolist(),
            "target": self.shift.target.tolist(),
        }
        if self.estimate is None or self.estimate.low is None or self.estimate.high is None:
            return found
        ends = {"low": self.estimate.low.tolist(), "high": self.estimate.high.tolist()}
        return found | ends | {"examples": self.estimate.examples, "level": self.estimate.level}

    def save(self, first: Any, path: Path) -> None:
        """Write the calibrator that is applied first with the change of priors after it."""
        from calibrant.calibrators import storage

        storage.save(replace(self.shift, calibrator=first, origin=first.origin), path)

    def show(self) -> None:
        """Print the priors before and after, of the first classes if there are many."""
        classes = len(self.shift.source)
        names = self.class_names or range(classes)
        rows = [
            [str(name), f"{old:.4f}", f"{new:.4f}"]
            for name, old, new in zip(
                names, self.shift.source.tolist(), self.shift.target.tolist(), strict=True
            )
        ]
        heads = ["class", "source prior", "target prior"]
        record = self.record
        if "low" in record:
            heads.append(f"{100 * record['level']:g} % interval")
            for row, low, high in zip(rows, record["low"], record["high"], strict=True):
                row.append(f"[{low:.4f}, {high:.4f}]")
            screen.say(
                f"priors by {record['method']} from {record['examples']:,} unlabelled examples"
            )
        screen.show_table(heads, rows[:SHOWN], numbers=heads[1:3])
        if classes > SHOWN:
            screen.say(f"and {classes - SHOWN:,} more classes: see --json")


def _examples_of(source: tuple[float, ...] | None, origin: "Fit | None") -> int | None:
    """How many examples the priors were counted in, if they are the class frequencies of a fit."""
    if source is None or origin is None or origin.class_frequencies is None:
        return None
    pairs = zip(source, origin.class_frequencies, strict=True)
    return origin.examples if all(isclose(*pair, abs_tol=1e-9) for pair in pairs) else None


def _priors_of(option: str, text: str, classes: int, names: tuple[str, ...] | None) -> "Prior":
    from calibrant.calibrators.priors import as_prior

    return as_prior(option, parsed(option, text), classes=classes, class_names=names)


def parsed(option: str, text: str) -> Any:
    """One number, numbers for all classes, or numbers by class name."""
    parts = [each.strip() for each in text.split(",")]
    try:
        if "=" not in text:
            numbers = [float(each) for each in parts]
            return numbers[0] if len(numbers) == 1 else numbers
        pairs = [each.rpartition("=") for each in parts]
        found = {name.strip(): float(number) for name, _, number in pairs}
    except ValueError:
        raise ValueError(f"{option} must be {WRITTEN}; got {text!r}") from None
    if len(found) < len(pairs):
        raise ValueError(f"{option} names a class twice: {text!r}")
    return found
