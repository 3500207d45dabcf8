"""`calibrant apply`: calibrated predictions from a calibrator and a file."""

import warnings
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import options, priors, screen
from calibrant.cli.apply_labels import apply_labels
from calibrant.cli.calibrate_output import measured, show_change, title_of
from calibrant.cli.calibrated_files import write_calibrated

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator
    from calibrant.calibrators.base import Fit
    from calibrant.calibrators.multicalibration import ColumnMap
    from calibrant.calibrators.sliced import SliceMap
    from calibrant.calibrators.storage import OfColumns
    from calibrant.language_models import AnswerLog
    from calibrant.prediction_files import PredictionArrays
    from calibrant.predictions import Predictions

READ = options.Reading()
# Class names in a message.
SHOWN = 10


class ScoreKind(StrEnum):
    """What is written."""

    probs = "probs"
    logits = "logits"


@options.with_reading
def apply(
    calibrator: options.Calibrator,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Predictions of the same model; labels or none.")
    ],
    output: Annotated[
        Path,
        options.output(
            metavar="PATH",
            help="File to write: npz, csv, tsv, parquet, safetensors; jsonl with --format.",
        ),
    ],
    allow_same: Annotated[
        bool,
        typer.Option("--allow-same", help="Allow the examples that the calibrator was fitted to."),
    ] = False,
    reads: options.Reading = READ,
    prior: priors.Known = None,
    estimate_prior: priors.Unlabelled = None,
    prior_method: priors.Method = None,
    source_prior: priors.SourcePrior = None,
    source_predictions: priors.SourcePredictions = None,
    save_calibrator: priors.Saved = None,
    written_as: Annotated[
        ScoreKind | None,
        options.written(
            "--as", metavar="KIND", help="Write probs or logits; default: what FILE holds."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Apply a calibrator: writes the file with calibrated scores, all else as it is.

    Scores keep their names, shape and kind: probabilities stay probabilities, one column for two
    classes stays one column. In tables all other columns are kept; of npz and safetensors files,
    labels, weights, groups and the arrays that --ignore names.
    """
    from calibrant import files
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.calibrators.base import zeros_note
    from calibrant.calibrators.sliced import SliceMap
    from calibrant.calibrators.storage import load
    from calibrant.predictions import from_arrays

    other = priors.PriorOptions(
        prior, estimate_prior, prior_method, source_prior, source_predictions, save_calibrator
    )
    saved = load(calibrator)
    if output.resolve() in [path.resolve() for path in files.expand(file)]:
        raise ValueError(f"{output} is the file to read: give another name to write to")
    if isinstance(saved, MultiLabelCalibrator):
        other.refuse("a calibrator of several labels")
        apply_labels(
            saved,
            reads,
            file,
            output,
            calibrator=calibrator,
            written_as=None if written_as is None else written_as.value,
            allow_same=allow_same,
            as_json=as_json,
        )
        return
    fitted, frequencies = other.first_of(saved)
    log, arrays = _read(reads, fitted, file)
    normalize = reads.normalize
    predictions = from_arrays(arrays, normalize=normalize, ignore_index=reads.ignore_index)
    labelled, origin = arrays.labels is not None, fitted.origin
    _check_as_fitted(file, reads, predictions, origin)
    same = labelled and origin is not None and origin.sha256 == predictions.sha256
    if same and not allow_same:
        raise ValueError(
            f"{file} holds the examples that {calibrator} was fitted to: results would be "
            "in-sample and optimistic; use held-out data, or --allow-same"
        )
    if predictions.zero_probs:
        warnings.warn(
            zeros_note(predictions, fitted.zero_floor or predictions.zero_floor), stacklevel=1
        )
    try:
        mapping = _for_rows(fitted, arrays, len(predictions), reads.ignore_index)
        changed = predictions.map(mapping)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    change = None
    if other.given:
        names = predictions.class_names
        if names is None and origin is not None:
            names = origin.class_names
        read = partial(_calibrated, reads, fitted)
        change = other.change(read, fitted.classes, frequencies, names, origin)
        changed = changed.map(change.shift)
    log_probs = changed.logits
    if labelled and reads.ignore_index is not None:
        # Ignored positions are calibrated, too: the file keeps its shape.
        whole = replace(arrays, labels=None)
        every = from_arrays(whole, normalize=normalize)
        every = every.map(_for_rows(fitted, whole, len(every)))
        log_probs = (every if change is None else every.map(change.shift)).logits
    kind = arrays.names.kind if written_as is None else written_as.value
    if log is not None and output.suffix.lower() == ".jsonl":
        from calibrant.language_models.calibrated_lines import write

        write(output, log, log_probs)
    else:
        write_calibrated(output, arrays, log_probs, kind, ignored=reads.ignore or ())
    record = {
        "calibrator": str(calibrator),
        "source": file,
        "calibrator_name": _name_of(fitted),
        "examples": len(changed),
        "classes": changed.classes,
        "same": same if labelled else None,
        "before": measured(predictions) if labelled else None,
        "after": measured(changed) if labelled else None,
        "predictions": str(output),
    }
    if columns := getattr(fitted, "columns", ()):
        record["by"] = list(columns)
    if isinstance(mapping, SliceMap):
        record["unseen_examples"] = int((mapping.index < 0).sum())
    if change is not None:
        record["priors"] = change.record
        if save_calibrator is not None:
            change.save(fitted, save_calibrator)
            record["saved_calibrator"] = str(save_calibrator)
    if as_json:
        screen.show_json(record)
    else:
        _show(record, title_of(fitted), change)


def _read(
    reads: options.Reading, fitted: "Calibrator | OfColumns", source: str
) -> "tuple[AnswerLog | None, PredictionArrays]":
    """The arrays of a file, and the log of a language model that it may be."""
    from calibrant.calibrators import MultiCalibrator

    columns = getattr(fitted, "columns", ())
    if reads.format is None:
        missing = isinstance(fitted, MultiCalibrator)
        return None, reads.arrays(source, by=columns, missing=missing)
    # Other tasks may have fewer options than those of the fit.
    log = replace(reads.log([source]), width=fitted.classes)
    return log, log.arrays(columns)


def _check_as_fitted(
    source: str, reads: options.Reading, predictions: "Predictions", origin: "Fit | None"
) -> None:
    """Refuse scores, or an order of classes, that are not those of the fit, as far as known."""
    from calibrant.files.checks import listed

    if origin is None:
        return
    if None not in (reads.scores, origin.scores) and reads.scores != origin.scores:
        raise ValueError(
            f"{source}: scores are {reads.scores}, those of the fit were {origin.scores}: give the "
            "same --normalize-by"
        )
    own, fitted = predictions.class_names, origin.class_names
    if own is None or fitted is None or own == fitted:
        return
    said = f"{source}: classes are {listed(own, SHOWN)}, those of the fit {listed(fitted, SHOWN)}"
    if set(own) == set(fitted):
        raise ValueError(f"{said}: give them in the order of the fit, with --names or --positive")
    warnings.warn(f"{said}: check that they mean the same", stacklevel=1)


def _for_rows(
    fitted: "Calibrator | OfColumns",
    arrays: "PredictionArrays",
    examples: int,
    ignore_index: int | None = None,
) -> "Calibrator | SliceMap | ColumnMap":
    """The calibrator of the examples of a file, which may depend on their columns."""
    from calibrant.calibrators import MultiCalibrator, SlicedCalibrator
    from calibrant.predictions import slices_from_arrays

    if not isinstance(fitted, SlicedCalibrator | MultiCalibrator):
        return fitted
    slices = slices_from_arrays(arrays, ignore_index=ignore_index)
    if isinstance(fitted, MultiCalibrator):
        return fitted.at(slices, examples=examples)
    return fitted.at(fitted.index(slices, examples=examples))


def _name_of(fitted: "Calibrator | OfColumns") -> str:
    """Name of a calibrator; of slices, that of all examples."""
    from calibrant.calibrators import SlicedCalibrator
    from calibrant.calibrators.storage import calibrator_name

    return calibrator_name(fitted.overall if isinstance(fitted, SlicedCalibrator) else fitted)


def _calibrated(
    reads: options.Reading, fitted: "Calibrator | OfColumns", source: str, labels: bool
) -> "Predictions":
    """Calibrated predictions of another file of the same model, with its labels or without."""
    from calibrant.predictions import from_arrays

    _, arrays = _read(reads, fitted, source)
    if not labels:
        arrays = replace(arrays, labels=None)
    elif arrays.labels is None:
        raise ValueError(f"{source} has no labels")
    ignore_index = reads.ignore_index if labels else None
    found = from_arrays(arrays, normalize=reads.normalize, ignore_index=ignore_index)
    _check_as_fitted(source, reads, found, fitted.origin)
    return found.map(_for_rows(fitted, arrays, len(found), ignore_index))


def _show(record: dict[str, Any], title: str, change: "priors.ChangeOfPriors | None") -> None:
    screen.say(
        f"{title} applied to {record['examples']:,} examples of {record['classes']:,} classes"
    )
    if record.get("unseen_examples"):
        screen.say(
            f"  {record['unseen_examples']:,} examples of unseen slices use the global calibrator"
        )
    screen.say("")
    if change is not None:
        change.show()
    if record["before"] is None:
        screen.say("no labels: metrics not computed")
    else:
        show_change(record)
    if record["same"]:
        screen.say("in-sample and therefore optimistic; evaluate on held-out data")
    screen.say(f"predictions: {record['predictions']}")
    if "saved_calibrator" in record:
        screen.say(f"calibrator: {record['saved_calibrator']}")
