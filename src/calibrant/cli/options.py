"""Options that several commands share, each defined once."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.screen import working

if TYPE_CHECKING:
    import calibrant.language_models
    import calibrant.prediction_files
    import calibrant.predictions


class IntervalType(StrEnum):
    """How bootstrap values become an interval."""

    basic = "basic"
    percentile = "percentile"
    bca = "bca"


def within(option: str, least: int, most: float = math.inf) -> Callable[[int | None], int | None]:
    """Check an integer, with a message that does not change with the release of the parser."""

    def check(value: int | None) -> int | None:
        if value is not None and value < least:
            raise ValueError(f"{option} must be at least {least:,}, got {value}")
        if value is not None and value > most:
            raise ValueError(f"{option} must be at most {most:,}, got {value}")
        return value

    return check


def panel(title: str) -> Callable[..., Any]:
    """Options that `--help` shows under a title of their own."""
    return partial(typer.Option, rich_help_panel=title)


def log(option: Callable[..., Any]) -> Any:
    """The option for loggers, in a panel."""
    return option(
        "--log",
        metavar="KIND:WHERE",
        help="Log epochs to tensorboard:DIR, mlflow:URI or wandb:PROJECT; may be repeated.",
    )


output: Callable[..., Any] = partial(typer.Option, "--output", "-o")
reading, measuring, written = panel("Input"), panel("Measurement"), panel("Output")

MultiLabel = Annotated[
    bool,
    reading(
        "--multi-label",
        help="Labels are (n, k): several for each example, with a score each. --labels may be a "
        "pattern such as 'y_*'.",
    ),
]
UNPAIRED = "The files hold different examples; use unpaired tests."
# Bytes of a file of class names.
MOST_NAMES = 16 * 2**20
# More bins would mostly be empty, and the sums of bins or the values of resamples fill the memory.
MOST_BINS, MOST_RESAMPLES = 10_000, 1_000_000
Bins = Annotated[
    int,
    measuring(
        help=f"Number of confidence bins, at most {MOST_BINS:,}; 1,000 of tables.",
        callback=within("--bins", 1, MOST_BINS),
    ),
]
Level = Annotated[float, measuring(help="Confidence level of intervals.")]
Resamples = Annotated[
    int,
    measuring(
        help="Number of bootstrap resamples.", callback=within("--resamples", 1, MOST_RESAMPLES)
    ),
]
Seed = Annotated[int, measuring(help="Random seed.", callback=within("--seed", 0))]
Json = Annotated[bool, written("--json", help="Print only JSON to stdout.")]
Calibrator = Annotated[
    Path, typer.Argument(metavar="CALIBRATOR", help="A json file that `calibrant fit` wrote.")
]


# Options of a format of language models: argument of its reader to field of `Reading`.
FORMAT_OPTIONS = {
    "lm-eval": {"normalize_by": "normalize_by"},
    "openai": {"options": "names", "label": "labels"},
    "confidence": {"confidence": "confidence", "correct": "correct", "scale": "scale"},
}
OF_FORMATS = ("format", "normalize_by", "scale")


def _scores(what: str) -> Any:
    return reading(
        metavar="NAMES", help=f"Array with {what}, or columns: p0,p1 or a pattern such as 'p*'."
    )


@dataclass(frozen=True)
class Reading:
    """How predictions are read from a file: options that several commands share."""

    logits: Annotated[list[str] | None, _scores("logits")] = None
    probs: Annotated[list[str] | None, _scores("probabilities")] = None
    labels: Annotated[
        str | None,
        reading(
            metavar="NAME", help="Labels: indices or class names. Default: labels, label, y, ..."
        ),
    ] = None
    names: Annotated[
        str | None,
        reading(metavar="A,B,...", help="Class names in order, or a file with one in each line."),
    ] = None
    positive: Annotated[
        str | None, reading(metavar="CLASS", help="Positive class of two: a label; default: 1.")
    ] = None
    normalize: Annotated[
        bool, reading("--normalize", help="Divide probabilities by their sums.")
    ] = False
    ignore_index: Annotated[
        int | None,
        reading(metavar="LABEL", help="Drop pixels, tokens or rows with this label, such as 255."),
    ] = None
    ignore: Annotated[
        list[str] | None,
        reading(
            metavar="NAME", help="Array or column to ignore, or a glob pattern; may be repeated."
        ),
    ] = None
    max_expansion: Annotated[
        float, reading(metavar="X", help="Largest allowed compression ratio of an array.")
    ] = 100.0
    format: Annotated[
        str | None,
        reading(
            metavar="NAME",
            help="JSON lines of a language model: lm-eval (sample logs), openai (logprobs, also of "
            "vLLM; --names are the option tokens) or confidence (free answers).",
        ),
    ] = None
    normalize_by: Annotated[
        str,
        reading(
            metavar="KIND",
            help="Of lm-eval, lengths to divide by: none, characters or bytes; or mutual-info.",
        ),
    ] = "none"
    scale: Annotated[
        str, reading(metavar="KIND", help="Of confidence: unit, or percent if 100 is certain.")
    ] = "unit"

    @property
    def scores(self) -> str | None:
        """What the scores of sample logs are, for the record of a fit; None of other files."""
        return f"lm-eval, normalized by {self.normalize_by}" if self.format == "lm-eval" else None

    def log(self, sources: Sequence[str]) -> "calibrant.language_models.AnswerLog":
        """Read the answers of one language model from files or patterns of `--format`."""
        from calibrant.language_models import FORMATS, read
        from calibrant.setting_errors import did_you_mean

        if self.format not in FORMATS:
            name = str(self.format)
            raise ValueError(f"no --format {name!r}; {did_you_mean(name, FORMATS)}")
        known = {"format", "max_expansion", *FORMAT_OPTIONS[self.format].values()}
        self.refuse_others(known, f"--format {self.format}")
        given = {
            key: getattr(self, name, None) for key, name in FORMAT_OPTIONS[self.format].items()
        }
        if "options" in given:
            given["options"] = class_names(self.names)
        with working(f"reading {sources[0]}"):
            return read(list(sources), self.format, max_expansion=self.max_expansion, **given)

    def _refuse_of_formats(self) -> None:
        """Refuse options that only a format has."""
        known = {each.name for each in fields(self)} - set(OF_FORMATS)
        self.refuse_others(known, "these files: add --format")

    def refuse_others(self, known: Iterable[str], what: str) -> None:
        """Refuse options that do not apply."""
        refused = [
            f"--{each.name.replace('_', '-')}"
            for each in fields(self)
            if each.name not in known and getattr(self, each.name) != each.default
        ]
        if refused:
            raise ValueError(f"{', '.join(refused)} cannot be used with {what}")

    def arrays(
        self,
        source: str,
        *,
        by: Sequence[str] = (),
        missing: bool = False,
        need_labels: bool = False,
    ) -> "calibrant.prediction_files.PredictionArrays":
        """Read the arrays of a file, or of all files that match a pattern.

        Labels are read if present, and the columns that `by` names, whose values may be `missing`.
        """
        from calibrant.array_names import Requested
        from calibrant.prediction_files import read_arrays

        if self.format is not None:
            return self.log([source]).arrays(by)
        self._refuse_of_formats()
        requested = Requested(
            logits=self.logits,
            probs=self.probs,
            labels=self.labels,
            ignore=tuple(self.ignore or ()),
            need_labels=need_labels,
            by=tuple(by),
            missing=missing,
        )
        return read_arrays(
            source,
            requested,
            class_names=class_names(self.names),
            positive=self.positive,
            max_expansion=self.max_expansion,
        )

    def multi_label_arrays(
        self, source: str, *, need_labels: bool = True
    ) -> "calibrant.prediction_files.PredictionArrays":
        """Read scores and labels of several labels, (n, k) each."""
        from calibrant.array_names import Requested
        from calibrant.multi_label_files import read_multi_label

        unused = ("positive", "normalize", "ignore_index")
        if given := [each for each in unused if getattr(self, each) != getattr(READING, each)]:
            options = ", ".join(f"--{each.replace('_', '-')}" for each in given)
            raise ValueError(f"{options} cannot be used with several labels")
        requested = Requested(
            logits=self.logits,
            probs=self.probs,
            labels=self.labels,
            ignore=tuple(self.ignore or ()),
            need_labels=need_labels,
        )
        with working(f"reading {source}"):
            return read_multi_label(
                source,
                requested,
                label_names=class_names(self.names),
                max_expansion=self.max_expansion,
            )

    def load(
        self, source: str, classes: Sequence[str] | None = None
    ) -> "calibrant.predictions.Predictions":
        """Read predictions; `classes` are names to use if no option names any."""
        from calibrant.predictions import Predictions

        if self.format is not None:
            return self.log([source]).predictions
        self._refuse_of_formats()
        given = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in OF_FORMATS
        }
        given["class_names"] = class_names(given.pop("names")) or classes
        given["ignore"] = self.ignore or ()
        with working(f"reading {source}"):
            return Predictions.load(source, **given)

    @property
    def given(self) -> list[str]:
        """The options that were given, as arguments of a command."""
        found = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                option = f"--{each.name.replace('_', '-')}"
                values = value if isinstance(value, list) else [value]
                found += (
                    [option] if value is True else [x for v in values for x in (option, str(v))]
                )
        return found


READING = Reading()


@dataclass(frozen=True)
class TopLabelReading(Reading):
    """Also files that hold only the confidence, for commands that need no more."""

    confidence: Annotated[
        str | None, reading(metavar="NAME", help="Confidence of the predicted class.")
    ] = None
    correct: Annotated[
        str | None,
        reading(metavar="NAME", help="Whether it was correct: 0, 1. Default: correct."),
    ] = None

    def holds(self, source: str) -> bool:
        """Whether a file has the scores that the options name, if they name any."""
        from calibrant.array_names import holds
        from calibrant.files import expand

        return self.format is not None or holds(expand(source)[0], self.named_scores)

    @property
    def named_scores(self) -> list[str]:
        """Names of the scores, of any kind."""
        confidence = [self.confidence] if self.confidence else []
        return [*(self.logits or ()), *(self.probs or ()), *confidence]

    def without_names(self) -> "TopLabelReading":
        """The same options, with the usual names of arrays."""
        return replace(self, logits=None, probs=None, labels=None, confidence=None, correct=None)


in_tables = panel("Tables, slices and time")


@dataclass(frozen=True)
class TableReading(TopLabelReading):
    """Also tables in an engine, with slices and windows of time."""

    weight: Annotated[
        str | None, in_tables(metavar="NAME", help="Column of weights. Default: weights.")
    ] = None
    group: Annotated[
        str | None,
        in_tables(metavar="NAME", help="Column of clusters, such as users. Default: groups."),
    ] = None
    engine: Annotated[
        str | None,
        in_tables(metavar="NAME", help="Read parquet or csv files with duckdb or polars."),
    ] = None
    sql: Annotated[
        str | None,
        in_tables(metavar="QUERY", help="Audit the result; files are the table predictions."),
    ] = None
    by: Annotated[
        str | None, in_tables(metavar="A,B", help="Columns to slice by; numbers by quantiles.")
    ] = None
    depth: Annotated[int, in_tables(help="Combine up to so many of these columns.")] = 1
    min_rows: Annotated[int, in_tables(help="Smallest slice that is tested.")] = 100
    correction: Annotated[
        str, in_tables(metavar="KIND", help="Correction of p-values of slices: holm or bh.")
    ] = "holm"
    find_slices: Annotated[
        str | None,
        in_tables(metavar="A,B", help="Search these columns for the worst slice; needs --key."),
    ] = None
    time: Annotated[
        str | None, in_tables(metavar="NAME", help="Column of times, for a series and drift.")
    ] = None
    every: Annotated[
        str, in_tables(metavar="WIDTH", help="Width of windows of time: 15m, 1h, 1d, 1w.")
    ] = "1d"
    bootstrap: Annotated[
        int,
        in_tables(metavar="N", help="Intervals by N resamples in the engine; needs --key."),
    ] = 0
    key: Annotated[
        str | None,
        in_tables(metavar="NAME", help="Column of row keys; the same key stays together."),
    ] = None
    drop_invalid: Annotated[
        bool, in_tables("--drop-invalid", help="Leave out and count invalid rows.")
    ] = False
    keep_going: Annotated[
        bool, in_tables("--keep-going", help="Leave out and count damaged files.")
    ] = False

    @property
    def of_tables(self) -> list[str]:
        """Options given that only tables have."""
        own = {each.name for each in fields(self)} - {each.name for each in fields(TopLabelReading)}
        return [f"--{each.name.replace('_', '-')}" for each in fields(self)
                if each.name in own and getattr(self, each.name) != each.default]  # fmt: skip

    @property
    def in_memory(self) -> TopLabelReading:
        """The options that reading into memory has."""
        names = [each.name for each in fields(TopLabelReading)]
        return TopLabelReading(**{name: getattr(self, name) for name in names})


def with_reading(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, in place of its parameter `reads`, the options of that parameter's type."""
    signature = inspect.signature(command)
    kind = signature.parameters["reads"].annotation
    added = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default,
            annotation=each.type,
        )
        for each in fields(kind)
    ]
    parameters = [
        new
        for old in signature.parameters.values()
        for new in (added if old.name == "reads" else [old])
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        chosen = {each.name: given.pop(each.name) for each in fields(kind)}
        command(reads=kind(**chosen), **given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def class_names(given: str | None) -> list[str] | None:
    """Class names from the command line, or from a file with one in each line."""
    if given is None:
        return None
    path = Path(given)
    if "," in given or not path.is_file():
        return [name.strip() for name in given.split(",")]
    if path.stat().st_size > MOST_NAMES:
        raise ValueError(f"{path}: expected a class name in each line, got more than 16 MB")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; expected a class name in each line") from None
    return [line.strip() for line in lines if line.strip()]
