"""`calibrant fit --by ... --calibrator multicalibration`: boosted trees on columns, into a file."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli import options, screen
from calibrant.cli.calibrate_output import measured, show_result, summary_of, title_of, with_scores
from calibrant.cli.fit_slices import columns_of, cross_validation_text

if TYPE_CHECKING:
    from calibrant.calibrators import MultiCalibrator

NAME = "multicalibration"


def fit_columns(
    reads: options.Reading,
    file: str,
    output: Path,
    *,
    by: str,
    zero_floor: float | None,
    as_json: bool,
    folds: int,
    seed: int,
) -> None:
    """Fit a multicalibrator, save it, and say what it changes."""
    from calibrant.calibrators import MultiCalibrator, save
    from calibrant.calibrators.fit_checks import convergence_remark, rise_remarks
    from calibrant.calibrators.multicalibration import TRIED, held_out_folds
    from calibrant.predictions import from_arrays, slices_from_arrays

    with screen.working(f"reading {file}"):
        arrays = reads.arrays(file, by=columns_of(by), missing=True, need_labels=True)
        predictions = from_arrays(
            arrays, normalize=reads.normalize, ignore_index=reads.ignore_index
        )
    columns = slices_from_arrays(arrays, ignore_index=reads.ignore_index)
    if zero_floor is not None:
        predictions = predictions.with_zero_floor(zero_floor)
    total = held_out_folds(len(predictions), folds) * TRIED
    with screen.progress(total, "cross-validating rounds of trees") as step:
        try:
            multi = MultiCalibrator.fit(predictions, columns, folds=folds, seed=seed, progress=step)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    multi = replace(multi, overall=with_scores(multi.overall, reads.scores))
    save(multi, output)
    scores, after = multi.cross_validation, multi.map(predictions, columns)
    rises = rise_remarks(predictions.with_zero_floor(multi.zero_floor), after)
    for remark in rises:
        warnings.warn(f"{NAME}: {remark}", stacklevel=1)
    # The fit itself warns that it did not converge.
    remarks = [each for each in (convergence_remark(multi.overall), *rises) if each]
    record: dict[str, Any] = {
        "source": file,
        "examples": len(predictions),
        "zero_probs": predictions.zero_probs,
        **summary_of(NAME, multi.overall),
        "by": list(multi.columns),
        "rounds": multi.rounds,
        "trees": len(multi.trees.sizes),
        "cross_validation": {**scores._asdict(), "difference": scores.difference},
        "before": measured(predictions),
        "after": measured(after),
        "measured_on": "the examples of the fit",
        "remarks": remarks,
        "calibrator": str(output),
    }
    if as_json:
        screen.show_json(record)
        return
    _show(record, multi)


def _show(record: dict[str, Any], multi: "MultiCalibrator") -> None:
    from calibrant.calibrators import Identity
    from calibrant.calibrators.multicalibration import counted

    unchanged = isinstance(multi.overall, Identity) and not multi.rounds
    screen.say(
        f"{title_of(multi)}, fitted to {record['examples']:,} examples of "
        f"{record['classes']:,} classes"
    )
    for name, value in multi.overall.shown_parameters.items():
        screen.say(f"  {name} {value} (global)")
    rounds, trees = counted(multi.rounds, "round"), counted(record["trees"], "tree")
    screen.say(f"  {rounds} of boosting, {trees}")
    screen.say("")
    one = "unchanged" if unchanged else "global"
    screen.say(cross_validation_text(multi.cross_validation, one, "with trees"))
    if unchanged:
        screen.say(
            "neither trees nor a global calibrator are better in cross-validation: "
            "predictions stay as they are"
        )
    elif not multi.rounds:
        screen.say("trees are not better in cross-validation: the global calibrator is used")
    show_result(record)
