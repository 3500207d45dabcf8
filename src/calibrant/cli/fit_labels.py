"""`calibrant fit --multi-label`: a calibrator for each label, into one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli import options, screen
from calibrant.cli.audit_labels import read_as
from calibrant.cli.calibrate_output import show_result, summary_of
from calibrant.cli.fit_slices import cross_validation_text, show_compared, slices_summary

if TYPE_CHECKING:
    from calibrant.calibrators import MultiLabelCalibrator
    from calibrant.multi_label import MultiLabel

# Labels in the table of a terminal; JSON has all.
SHOWN = 50
MEASURED = ("nll", "binary_brier", "binary_ece")


def fit_labels(
    reads: options.Reading,
    file: str,
    output: Path,
    *,
    name: str,
    criterion: str,
    folds: int,
    seed: int,
    as_json: bool,
) -> None:
    """Fit the labels, save the calibrator, and say what it changes.

    `auto` keeps the calibrator with the lowest cross-validated NLL.
    """
    from calibrant.calibrators import MultiLabelCalibrator, save
    from calibrant.calibrators.multi_label import LABEL_CALIBRATORS
    from calibrant.multi_label import multi_label_from_arrays

    if criterion != "nll":
        raise ValueError(f"--multi-label compares by nll: leave out --criterion {criterion}")
    names = LABEL_CALIBRATORS if name == "auto" else (name,)
    arrays = reads.multi_label_arrays(file)
    multi = multi_label_from_arrays(arrays)
    with screen.progress(folds * len(names), "cross-validating labels") as step:
        found = {
            each: MultiLabelCalibrator.fit(
                multi, calibrator=each, folds=folds, seed=seed, progress=step
            )
            for each in names
        }
    compared = {each: of.sliced.cross_validation for each, of in found.items()}
    name = min(found, key=lambda each: min(compared[each].overall, compared[each].sliced))
    fitted = found[name]
    save(fitted, output)
    record: dict[str, Any] = {
        "source": file,
        "examples": len(multi),
        "labels": multi.size,
        **summary_of(name, fitted.shared),
        **slices_summary(fitted.sliced),
        "before": measured_labels(multi),
        "after": measured_labels(multi.map(fitted)),
        "measured_on": "the examples of the fit",
        "remarks": [],
        "selection": {each: scores._asdict() for each, scores in compared.items()},
        "calibrator": str(output),
    }
    if as_json:
        screen.show_json(record)
        return
    screen.say(f"{file}: {read_as(arrays)}")
    if len(found) > 1:
        show_compared(compared, folds, "by label")
    _show(record, fitted)


def measured_labels(multi: "MultiLabel") -> dict[str, float]:
    """Macro values of a few metrics, to see what changed."""
    from calibrant.metrics import METRICS, macro

    return {name: macro(METRICS[name], multi) for name in MEASURED}


def _show(record: dict[str, Any], fitted: "MultiLabelCalibrator") -> None:
    from calibrant.calibrators.sliced import HEADS, slice_rows

    screen.say(
        f"{record['calibrator_name']} by label, fitted to {record['examples']:,} examples "
        f"of {record['labels']:,} labels"
    )
    for name, value in fitted.shared.shown_parameters.items():
        screen.say(f"  {name} {value} (shared)")
    screen.say("")
    heads = ("label", *HEADS[1:])
    screen.show_table(heads, slice_rows(fitted.summaries[:SHOWN]), numbers=heads[1:])
    if record["labels"] > SHOWN:
        screen.say(f"and {record['labels'] - SHOWN:,} more labels; --json lists all\n")
    screen.say(cross_validation_text(fitted.sliced.cross_validation, "shared", "by label"))
    if not fitted.sliced.slices_win:
        screen.say("own calibrators are not better in cross-validation: the shared one is used")
    screen.say("mean over labels (macro):")
    show_result(record)
