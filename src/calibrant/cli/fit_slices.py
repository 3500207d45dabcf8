"""`calibrant fit --by`: a calibrator for each slice, into one file."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli import options, screen
from calibrant.cli.calibrate_output import measured, show_result, summary_of, title_of, with_scores

if TYPE_CHECKING:
    import calibrant.calibrators

# Slices in the table of a terminal; JSON has all.
SHOWN = 50


def fit_by(
    reads: options.Reading,
    file: str,
    output: Path,
    *,
    by: str,
    name: str,
    zero_floor: float | None,
    as_json: bool,
    folds: int,
    criterion: str,
    seed: int,
    preserve_class: bool,
) -> None:
    """Fit slices, save them, and say what they change.

    `auto` fits every supported calibrator and keeps the one with the lowest cross-validated NLL,
    among those that converge if any does.
    """
    from calibrant.calibrators import CALIBRATORS, SlicedCalibrator, fit_remarks, save
    from calibrant.calibrators.fit_checks import convergence_remark
    from calibrant.calibrators.sliced import check_supported, supported
    from calibrant.predictions import from_arrays, slices_from_arrays
    from calibrant.scoped_warnings import without_warnings

    if name == "blend":
        raise ValueError("blend cannot be fitted to slices; use auto or name a calibrator")
    if criterion != "nll":
        raise ValueError(f"--by compares by nll: leave out --criterion {criterion}")
    columns = columns_of(by)
    with screen.working(f"reading {file}"):
        arrays = reads.arrays(file, by=columns, need_labels=True)
        predictions = from_arrays(
            arrays, normalize=reads.normalize, ignore_index=reads.ignore_index
        )
    slices = slices_from_arrays(arrays, ignore_index=reads.ignore_index)
    if zero_floor is not None:
        predictions = predictions.with_zero_floor(zero_floor)
    names = [name]
    if name == "auto":
        names = [
            each
            for each in supported(predictions.classes)
            if CALIBRATORS[each].keeps_argmax or not preserve_class
        ]
    check_supported(names[0], predictions.classes)
    found = {}
    with (
        screen.progress(folds * len(names), "cross-validating slices") as step,
        without_warnings(),
    ):
        for each in names:
            try:
                found[each] = SlicedCalibrator.fit(
                    predictions, slices, calibrator=each, folds=folds, seed=seed, progress=step
                )
            except ValueError as error:
                # The first, temperature, has the fewest requirements.
                if each == names[0]:
                    raise ValueError(f"{file}: {error}") from None
    compared = {each: of.cross_validation for each, of in found.items()}

    def order(each: str) -> tuple[bool, float]:
        failed = bool(convergence_remark(found[each].overall))
        return failed, min(compared[each].overall, compared[each].sliced)

    name = min(found, key=order)
    sliced = found[name]
    sliced = replace(sliced, overall=with_scores(sliced.overall, reads.scores))
    # The same fit again, for its warnings only.
    CALIBRATORS[name].fit(predictions)
    save(sliced, output)
    remarks = fit_remarks(sliced.overall, predictions)
    for remark in remarks:
        # The fit itself warns that it did not converge.
        if remark != convergence_remark(sliced.overall):
            warnings.warn(f"{name}: {remark}", stacklevel=1)
    record: dict[str, Any] = {
        "source": file,
        "examples": len(predictions),
        "zero_probs": predictions.zero_probs,
        **summary_of(name, sliced.overall),
        **slices_summary(sliced),
        "before": measured(predictions),
        "global": measured(predictions.map(sliced.overall)),
        "after": measured(sliced.map(predictions, slices)),
        "measured_on": "the examples of the fit",
        "remarks": remarks,
        "selection": {each: scores._asdict() for each, scores in compared.items()},
        "calibrator": str(output),
    }
    if as_json:
        screen.show_json(record)
        return
    if len(found) > 1:
        show_compared(compared, folds, "by slice")
    _show(record, sliced)


def columns_of(by: str) -> list[str]:
    """The names that --by gives."""
    columns = [each.strip() for each in by.split(",") if each.strip()]
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"--by needs one or more different columns, got {by!r}")
    return columns


def show_compared(
    compared: "Mapping[str, calibrant.calibrators.CrossValidation]", folds: int, own: str
) -> None:
    """Print the cross-validated NLL of each kind of calibrator: one of all examples, own ones."""
    heads = ("calibrator", "global", own)
    rows = [[name, f"{of.overall:.4f}", f"{of.sliced:.4f}"] for name, of in compared.items()]
    screen.say(f"{folds}-fold NLL")
    screen.show_table(heads, rows, numbers=heads[1:])


def slices_summary(sliced: "calibrant.calibrators.SlicedCalibrator") -> dict[str, Any]:
    """The slices and their cross-validation, in plain values."""
    from calibrant.calibrators.describe import plain_values

    scores = sliced.cross_validation
    return {
        "by": list(sliced.columns),
        "tau": sliced.tau.tolist(),
        "slices_used": sliced.slices_win,
        "cross_validation": {**scores._asdict(), "difference": scores.difference},
        "slices": [
            {
                "slice": list(each.key),
                "examples": each.examples,
                "own": None if each.own is None else plain_values(each.own.parameters),
                "shrunk": plain_values(each.shrunk.parameters),
                "weights": weights,
            }
            for each, weights in zip(sliced.summaries, sliced.weights.tolist(), strict=True)
        ],
    }


def _show(record: dict[str, Any], sliced: "calibrant.calibrators.SlicedCalibrator") -> None:
    from calibrant.calibrators.sliced import HEADS, slice_rows

    screen.say(
        f"{title_of(sliced)}, fitted to {record['examples']:,} examples "
        f"of {record['classes']:,} classes"
    )
    for name, value in sliced.overall.shown_parameters.items():
        screen.say(f"  {name} {value} (global)")
    screen.say("")
    screen.show_table(HEADS, slice_rows(sliced.summaries[:SHOWN]), numbers=HEADS[1:])
    if len(sliced.keys) > SHOWN:
        screen.say(f"and {len(sliced.keys) - SHOWN:,} smaller slices; --json lists all\n")
    screen.say(cross_validation_text(sliced.cross_validation, "global", "by slice"))
    if not (sliced.precisions > 0).any():
        screen.say("no slice has enough examples of its own: the global calibrator is used")
    elif not sliced.slices_win:
        screen.say("slices are not better in cross-validation: the global calibrator is used")
    show_result(record)


def cross_validation_text(
    scores: "calibrant.calibrators.CrossValidation", one: str, own: str
) -> str:
    """Held-out NLL of `one` calibrator and of `own` ones, with their difference."""
    from calibrant.table_values import p_text

    return (
        f"{scores.folds}-fold NLL: {one} {scores.overall:.4f}, {own} {scores.sliced:.4f}; "
        f"difference {scores.difference:+.4f} [{scores.low:+.4f}, {scores.high:+.4f}], "
        f"p {p_text(scores.p_value)}"
    )
