"""`calibrant fit`: a calibrator from held-out predictions, into a file."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import options, screen
from calibrant.cli.calibrate_output import measured, show_result, summary_of, with_scores
from calibrant.cli.fit_columns import NAME as MULTICALIBRATION
from calibrant.cli.fit_columns import fit_columns
from calibrant.cli.fit_labels import fit_labels
from calibrant.cli.fit_slices import fit_by

if TYPE_CHECKING:
    import calibrant.calibrators
    import calibrant.predictions

# Those of `calibrators.selection`, which is too heavy to load for --help.
CRITERIA = ("nll", "brier")
AUTO, BLEND = "auto", "blend"
# These compare all calibrators first.
COMPARED = (AUTO, BLEND)

READ = options.Reading()


@options.with_reading
def fit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Held-out predictions, with labels.")],
    output: Annotated[Path, options.output(metavar="PATH", help="File to write, .json.")],
    given: Annotated[
        str | None,
        typer.Option(
            "--calibrator",
            metavar="NAME",
            help=f"See `calibrant list calibrators`; {BLEND} combines all, weighted by "
            f"cross-validation, {AUTO} selects one. Default: {BLEND}; {AUTO} with --by and "
            "--multi-label.",
        ),
    ] = None,
    multi_label: options.MultiLabel = False,
    reads: options.Reading = READ,
    folds: Annotated[
        int,
        options.measuring(
            help=f"Cross-validation folds, for {AUTO}, {BLEND} and --by.",
            callback=options.within("--folds", 2),
        ),
    ] = 5,
    criterion: Annotated[
        str,
        options.measuring(
            metavar="NAME",
            help=f"Selection criterion, for {AUTO} and {BLEND}: {', '.join(CRITERIA)}.",
        ),
    ] = "nll",
    seed: options.Seed = 0,
    budget: Annotated[
        float | None,
        options.measuring(
            metavar="SECONDS",
            help=f"Time for the comparison of {AUTO} and {BLEND}; without it all are compared.",
        ),
    ] = None,
    preserve_class: Annotated[
        bool,
        options.measuring(
            "--preserve-class",
            help=f"Only calibrators that preserve the predicted class, for {AUTO} and {BLEND}.",
        ),
    ] = False,
    zero_floor: Annotated[
        float | None,
        options.measuring(
            metavar="X",
            help="Replaces probabilities of exactly 0; by default estimated from the examples.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        options.measuring(
            metavar="COLUMNS",
            help="Columns of slices, such as region,version: a calibrator for each, shrunk "
            f"towards the global one; with {MULTICALIBRATION}, boosted trees on the columns.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fit a calibrator to held-out predictions, not to those the network was trained on."""
    from calibrant.calibrators import CALIBRATORS, fit_remarks
    from calibrant.calibrators.fit_checks import convergence_remark
    from calibrant.calibrators.storage import calibrator_name, save
    from calibrant.setting_errors import did_you_mean

    name = given or (BLEND if by is None and not multi_label else AUTO)
    known = [*COMPARED, *CALIBRATORS, MULTICALIBRATION]
    if name not in known:
        raise ValueError(f"no calibrator {name!r}; {did_you_mean(name, known)}")
    if name == MULTICALIBRATION and by is None:
        raise ValueError(f"{name} needs the columns of the examples: add --by, such as --by region")
    kept = name in COMPARED or (name in CALIBRATORS and CALIBRATORS[name].keeps_argmax)
    if preserve_class and not kept:
        raise ValueError(f"{name} may change the predicted class: leave out --preserve-class")
    if criterion not in CRITERIA:
        raise ValueError(f"no criterion {criterion!r}; {did_you_mean(criterion, CRITERIA)}")
    if output.suffix.lower() != ".json":
        raise ValueError(f"cannot write {output}: calibrators are saved as .json")
    if budget is not None and (by is not None or multi_label or name not in COMPARED):
        raise ValueError(f"--budget limits the comparison of {AUTO} and {BLEND}: leave it out")
    if multi_label:
        other = {"by": by, "preserve-class": preserve_class, "zero-floor": zero_floor is not None}
        if refused := [f"--{option}" for option, value in other.items() if value]:
            raise ValueError(f"{', '.join(refused)} cannot be used with --multi-label")
        fit_labels(
            reads,
            file,
            output,
            name=name,
            criterion=criterion,
            folds=folds,
            seed=seed,
            as_json=as_json,
        )
        return
    if by is not None and name == MULTICALIBRATION:
        if criterion != "nll":
            raise ValueError(f"{name} compares by nll: leave out --criterion {criterion}")
        fit_columns(
            reads,
            file,
            output,
            by=by,
            zero_floor=zero_floor,
            as_json=as_json,
            folds=folds,
            seed=seed,
        )
        return
    if by is not None:
        fit_by(
            reads,
            file,
            output,
            by=by,
            name=name,
            zero_floor=zero_floor,
            as_json=as_json,
            folds=folds,
            criterion=criterion,
            seed=seed,
            preserve_class=preserve_class,
        )
        return
    predictions = reads.load(file)
    if zero_floor is not None:
        predictions = predictions.with_zero_floor(zero_floor)
    selection, requested = None, name
    if name in COMPARED:
        selection = _selected(
            predictions,
            folds=folds,
            criterion=criterion,
            seed=seed,
            preserve_class=preserve_class,
            budget=budget,
        )
        calibrator = selection.best if requested == AUTO else selection.blend
        name = calibrator_name(calibrator)
    else:
        calibrator = CALIBRATORS[name].fit(predictions)
    calibrator = with_scores(calibrator, reads.scores)
    save(calibrator, output)
    remarks = fit_remarks(calibrator, predictions)
    record: dict[str, Any] = {
        "source": file,
        "examples": len(predictions),
        "zero_probs": predictions.zero_probs,
        **summary_of(name, calibrator),
        "before": measured(predictions),
        "after": measured(predictions.map(calibrator)),
        "measured_on": "the examples of the fit",
        "remarks": remarks,
        "selection": None if selection is None else selection.to_dict(),
        "calibrator": str(output),
    }
    shown = calibrator.shown_parameters
    if selection is not None and name == BLEND:
        record["parameters"] = {"parts": selection.to_dict()["parts"]}
        shown = {"parts": selection.shown_weights}
    for remark in remarks:
        # The fit itself warns that it did not converge.
        if remark != convergence_remark(calibrator):
            warnings.warn(f"{name}: {remark}", stacklevel=1)
    if as_json:
        screen.show_json(record)
        return
    if selection is not None:
        screen.say(str(selection))
        if requested == BLEND:
            screen.say(f"saved: the blend; --calibrator {AUTO} saves the selected one alone")
        screen.say("")
    _show(record, shown)


def _selected(
    predictions: "calibrant.predictions.Predictions",
    *,
    folds: int,
    preserve_class: bool,
    **given: Any,
) -> Any:
    from calibrant import calibrators
    from calibrant.calibrators.selection import check_candidates

    count = len(check_candidates(None, preserve_class=preserve_class))
    with screen.progress(folds * count, f"comparing {count} calibrators") as step:
        return calibrators.select(
            predictions, folds=folds, preserve_class=preserve_class, progress=step, **given
        )


def _show(record: dict[str, Any], parameters: Mapping[str, str]) -> None:
    screen.say(
        f"{record['calibrator_name']}, fitted to {record['examples']:,} examples "
        f"of {record['classes']:,} classes"
    )
    for name, value in parameters.items():
        screen.say(f"  {name} {value}")
    if record["zero_probs"]:
        screen.say(f"  zero_floor {record['zero_floor']:g}")
    show_result(record)
