"""`calibrant fit --by ... --calibrator multicalibration`: boosted trees on columns, into a file."""

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
    from calibrant.calibrators.multicalibration import TRIED
    from calibrant.predictions import from_arrays, slices_from_arrays

    with screen.working(f"reading {file}"):
        arrays = reads.arrays(file, by=columns_of(by), missing=True, need_labels=True)
        predictions = from_arrays(
            arrays, normalize=reads.normalize, ignore_index=reads.ignore_index
        )
    columns = slices_from_arrays(arrays, ignore_index=reads.ignore_index)
    if zero_floor is not None:
        predictions = predictions.with_zero_floor(zero_floor)
    with screen.progress(folds * TRIED, "cross-validating rounds of trees") as step:
        try:
            multi = MultiCalibrator.fit(predictions, columns, folds=folds, seed=seed, progress=step)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    multi = replace(multi, overall=with_scores(multi.overall, reads.scores))
    save(multi, output)
    scores = multi.cross_validation
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
        "after": measured(multi.map(predictions, columns)),
        "measured_on": "the examples of the fit",
        "remarks": [],
        "calibrator": str(output),
    }
    if as_json:
        screen.show_json(record)
        return
    _show(record, multi)


def _show(record: dict[str, Any], multi: "MultiCalibrator") -> None:
    screen.say(
        f"{title_of(multi)}, fitted to {record['examples']:,} examples of "
        f"{record['classes']:,} classes"
    )
    for name, value in multi.overall.shown_parameters.items():
        screen.say(f"  {name} {value} (global)")
    screen.say(f"  {multi.rounds} rounds of boosting, {record['trees']:,} trees")
    screen.say("")
    screen.say(cross_validation_text(multi.cross_validation, "global", "with trees"))
    if not multi.rounds:
        screen.say("trees are not better in cross-validation: the global calibrator is used")
    show_result(record)
