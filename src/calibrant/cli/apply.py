"""`calibrant apply`: calibrated predictions from a calibrator and a file."""

import warnings
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import options, screen
from calibrant.cli.apply_labels import apply_labels
from calibrant.cli.calibrate_output import measured, show_change, title_of
from calibrant.cli.calibrated_files import write_calibrated

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator, SlicedCalibrator
    from calibrant.calibrators.sliced import SliceMap
    from calibrant.prediction_files import PredictionArrays

READ = options.Reading()


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
    from calibrant.calibrators import MultiLabelCalibrator, SlicedCalibrator
    from calibrant.calibrators.base import zeros_note
    from calibrant.calibrators.sliced import SliceMap
    from calibrant.calibrators.storage import calibrator_name, load
    from calibrant.predictions import from_arrays

    fitted = load(calibrator)
    if output.resolve() in [path.resolve() for path in files.expand(file)]:
        raise ValueError(f"{output} is the file to read: give another name to write to")
    if isinstance(fitted, MultiLabelCalibrator):
        apply_labels(
            fitted,
            reads,
            file,
            output,
            calibrator=calibrator,
            written_as=None if written_as is None else written_as.value,
            allow_same=allow_same,
            as_json=as_json,
        )
        return
    columns = fitted.columns if isinstance(fitted, SlicedCalibrator) else ()
    log = None if reads.format is None else reads.log([file])
    # Other tasks may have fewer options than those of the fit.
    log = log and replace(log, width=fitted.classes)
    arrays = reads.arrays(file, by=columns) if log is None else log.arrays(columns)
    normalize = reads.normalize
    predictions = from_arrays(arrays, normalize=normalize, ignore_index=reads.ignore_index)
    labelled, origin = arrays.labels is not None, fitted.origin
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
    log_probs = changed.logits
    if labelled and reads.ignore_index is not None:
        # Ignored positions are calibrated, too: the file keeps its shape.
        whole = replace(arrays, labels=None)
        every = from_arrays(whole, normalize=normalize)
        log_probs = every.map(_for_rows(fitted, whole, len(every))).logits
    kind = arrays.names.kind if written_as is None else written_as.value
    if log is not None and output.suffix.lower() == ".jsonl":
        from calibrant.language_models.calibrated_lines import write

        write(output, log, log_probs)
    else:
        write_calibrated(output, arrays, log_probs, kind, ignored=reads.ignore or ())
    record = {
        "calibrator": str(calibrator),
        "source": file,
        "calibrator_name": calibrator_name(getattr(fitted, "overall", fitted)),
        "examples": len(changed),
        "classes": changed.classes,
        "same": same if labelled else None,
        "before": measured(predictions) if labelled else None,
        "after": measured(changed) if labelled else None,
        "predictions": str(output),
    }
    if isinstance(mapping, SliceMap):
        record |= {"by": list(columns), "unseen_examples": int((mapping.index < 0).sum())}
    if as_json:
        screen.show_json(record)
    else:
        _show(record, title_of(fitted))


def _for_rows(
    fitted: "Calibrator | SlicedCalibrator",
    arrays: "PredictionArrays",
    examples: int,
    ignore_index: int | None = None,
) -> "Calibrator | SliceMap":
    """The calibrator of the examples of a file, which may depend on their slices."""
    from calibrant.calibrators import SlicedCalibrator
    from calibrant.predictions import slices_from_arrays

    if not isinstance(fitted, SlicedCalibrator):
        return fitted
    slices = slices_from_arrays(arrays, ignore_index=ignore_index)
    return fitted.at(fitted.index(slices, examples=examples))


def _show(record: dict[str, Any], title: str) -> None:
    screen.say(
        f"{title} applied to {record['examples']:,} examples of {record['classes']:,} classes"
    )
    if record.get("unseen_examples"):
        screen.say(
            f"  {record['unseen_examples']:,} examples of unseen slices use the global calibrator"
        )
    screen.say("")
    if record["before"] is None:
        screen.say("no labels: metrics not computed")
    else:
        show_change(record)
    if record["same"]:
        screen.say("in-sample and therefore optimistic; evaluate on held-out data")
    screen.say(f"predictions: {record['predictions']}")
