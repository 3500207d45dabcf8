"""`calibrant apply`: calibrated predictions from a calibrator and a file."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import options, screen
from calibrant.cli.calibrate_output import measured, show_change

if TYPE_CHECKING:
    import calibrant.predictions


def apply(
    calibrator: options.Calibrator,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Predictions of the same model; labels or none.")
    ],
    output: Annotated[
        Path,
        options.output(metavar="PATH", help="File to write: npz, csv, parquet or safetensors."),
    ],
    allow_same: Annotated[
        bool,
        typer.Option("--allow-same", help="Allow the examples that the calibrator was fitted to."),
    ] = False,
    logits: options.Logits = None,
    probs: options.Probs = None,
    labels: options.Labels = "labels",
    ignore: options.Ignore = None,
    max_expansion: options.Expansion = 100.0,
    as_json: options.Json = False,
) -> None:
    """Apply a calibrator: writes its log-probabilities as logits, beside the labels if any."""
    from calibrant import files
    from calibrant.calibrators.base import zeros_note
    from calibrant.calibrators.storage import load, method_of

    fitted = load(calibrator)
    paths = files.expand(file)
    if output.resolve() in [path.resolve() for path in paths]:
        raise ValueError(f"{output} is the file to read: give another name to write to")
    labelled = labels in files.names(paths[0])
    read = options.load if labelled else _unlabelled
    predictions = read(file, logits, probs, labels, ignore, max_expansion)
    origin = fitted.origin
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
        changed = predictions.map(fitted)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if labelled:
        changed.save(output)
    else:
        files.write(output, {"logits": changed.logits.numpy()})
    record = {
        "calibrator": str(calibrator),
        "source": file,
        "method": method_of(fitted),
        "examples": len(changed),
        "classes": changed.classes,
        "same": same if labelled else None,
        "before": measured(predictions) if labelled else None,
        "after": measured(changed) if labelled else None,
        "predictions": str(output),
    }
    (screen.show_json if as_json else _show)(record)


def _unlabelled(
    file: str,
    logits: str | None,
    probs: str | None,
    labels: str,
    ignore: list[str] | None,
    max_expansion: float,
) -> "calibrant.predictions.Predictions":
    """A file without labels, checked as any other; all its labels are 0."""
    from calibrant import files
    from calibrant.array_names import optional_names, which_scores
    from calibrant.predictions import from_arrays

    paths = files.expand(file)
    held = [files.names(path) for path in paths]
    kind, name = which_scores(paths[0], [*held[0], labels], logits, probs, labels)
    optional_names(paths, held, name, labels, ignore or ())
    values = files.read_parts(paths, [name], max_expansion=max_expansion)[name]
    return from_arrays(file, kind, values, [0] * len(values))


def _show(record: dict[str, Any]) -> None:
    screen.say(
        f"{record['method']} applied to {record['examples']:,} examples "
        f"of {record['classes']:,} classes"
    )
    screen.say("")
    if record["before"] is None:
        screen.say("no labels: metrics not computed")
    else:
        show_change(record)
    if record["same"]:
        screen.say("in-sample and therefore optimistic; evaluate on held-out data")
    screen.say(f"predictions: {record['predictions']}")
