"""`calibrant apply`: calibrated predictions from a calibrator and a file."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import options, screen
from calibrant.cli.calibrate_output import measured, show_change

if TYPE_CHECKING:
    import calibrant.calibrators
    import calibrant.predictions


def apply(
    calibrator: options.Calibrator,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Predictions of the same model; labels or none.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Where they go: npz, csv, parquet, safetensors."
        ),
    ],
    allow_same: Annotated[
        bool,
        typer.Option(
            "--allow-same", help="Also for the examples of the fit, on which it looks too good."
        ),
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
    from calibrant.calibrators.storage import load, method_of

    fitted = load(calibrator)
    paths = files.expand(file)
    if output.resolve() in [path.resolve() for path in paths]:
        raise ValueError(f"{output} is the file to read: give another name to write to")
    held = files.names(paths[0])
    record: dict[str, Any] = {"calibrator": str(calibrator), "source": file}
    record["method"] = method_of(fitted)
    names: dict[str, Any] = {"logits": logits, "probs": probs, "labels": labels}
    names["ignore"] = ignore or ()
    if labels in held:
        from calibrant.predictions import Predictions

        predictions = Predictions.load(file, **names, max_expansion=max_expansion)
        same = fitted.origin is not None and fitted.origin.sha256 == predictions.sha256
        if same and not allow_same:
            raise ValueError(
                f"{file} holds the examples that {calibrator} was fitted to, on which it looks too "
                "good; use others, or --allow-same"
            )
        _note_zeros(predictions)
        changed = _mapped(fitted, predictions, file)
        changed.save(output)
        record |= {"examples": len(changed), "classes": changed.classes, "same": same}
        record |= {"before": measured(predictions), "after": measured(changed)}
    else:
        scores = _unlabelled(file, held, names, max_expansion)
        files.write(output, {"logits": _applied(fitted, scores, file).numpy()})
        record |= {"examples": len(scores), "classes": fitted.classes, "same": None}
        record |= {"before": None, "after": None}
    record["predictions"] = str(output)
    (screen.show_json if as_json else _show)(record)


def _mapped(
    fitted: "calibrant.calibrators.Calibrator",
    predictions: "calibrant.predictions.Predictions",
    file: str,
) -> "calibrant.predictions.Predictions":
    return predictions.map(lambda logits: _applied(fitted, logits, file))


def _applied(fitted: "calibrant.calibrators.Calibrator", logits: Any, file: str) -> Any:
    try:
        return fitted(logits)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _unlabelled(file: str, held: list[str], names: dict[str, Any], max_expansion: float) -> Any:
    """Logits of a file without labels, checked as those of any other."""
    from calibrant import files
    from calibrant.array_names import optional_names, which_scores
    from calibrant.predictions import Predictions

    paths = files.expand(file)
    # Asked for as if labels were there, which nobody has to have to be calibrated.
    seen = [*held, names["labels"]]
    kind, name = which_scores(paths[0], seen, names["logits"], names["probs"], names["labels"])
    others = [files.names(path) for path in paths]
    optional_names(paths, others, name, names["labels"], names["ignore"])
    values = files.read_parts(paths, [name], max_expansion=max_expansion)[name]
    none = [0] * len(values)
    try:
        if values.ndim == 1:
            found = Predictions.from_binary(values, none, kind=kind)
        else:
            make = Predictions if kind == "logits" else Predictions.from_probs
            found = make(values, none)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{file}: {error}") from None
    _note_zeros(found)
    return found.logits


def _note_zeros(predictions: "calibrant.predictions.Predictions") -> None:
    if predictions.zero_probs:
        warnings.warn(
            f"{predictions.zero_probs} of {len(predictions) * predictions.classes} probabilities "
            "are exactly 0: replaced by 1e-38",
            stacklevel=2,
        )


def _show(record: dict[str, Any]) -> None:
    screen.say(
        f"{record['method']} applied to {record['examples']:,} examples "
        f"of {record['classes']:,} classes"
    )
    screen.say("")
    if record["before"] is None:
        screen.say("no labels, so nothing was measured")
    else:
        show_change(record)
    if record["same"]:
        screen.say("these are the examples of the fit: it looks better here than it is")
    screen.say(f"predictions: {record['predictions']}")
