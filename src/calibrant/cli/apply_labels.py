"""`calibrant apply` of a calibrator of several labels."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli import options, screen
from calibrant.cli.audit_labels import read_as
from calibrant.cli.calibrate_output import show_change
from calibrant.cli.calibrated_files import write_calibrated
from calibrant.cli.fit_labels import measured_labels

if TYPE_CHECKING:
    from calibrant.calibrators import MultiLabelCalibrator


def apply_labels(
    fitted: "MultiLabelCalibrator",
    reads: options.Reading,
    file: str,
    output: Path,
    *,
    calibrator: Path,
    written_as: str | None,
    allow_same: bool,
    as_json: bool,
) -> None:
    """Write the file with calibrated scores of every label, all else as it is.

    Columns are matched with the labels of the fit by their names, in any order.
    """
    from torch.nn.functional import logsigmoid

    from calibrant.multi_label import multi_label_from_arrays
    from calibrant.multi_label_files import NAMES

    arrays = reads.multi_label_arrays(file, need_labels=False)
    labelled = arrays.labels is not None
    multi = multi_label_from_arrays(arrays)
    if arrays.class_names is None and len(fitted.label_names) == multi.size:
        # Without names the columns are in the order of the fit.
        multi = multi_label_from_arrays(replace(arrays, class_names=fitted.label_names))
    if sorted(fitted.label_names) != sorted(multi.label_names):
        raise ValueError(
            f"{file} has the labels {', '.join(multi.label_names[:5])}, ..., {calibrator} was "
            f"fitted to {', '.join(fitted.label_names[:5])}, ...: give the same labels"
        )
    fitted = fitted.for_labels(multi.label_names)
    same = labelled and fitted.origin is not None and fitted.origin.sha256 == multi.pooled().sha256
    if same and not allow_same:
        raise ValueError(
            f"{file} holds the examples that {calibrator} was fitted to: results would be "
            "in-sample and optimistic; use held-out data, or --allow-same"
        )
    changed = multi.map(fitted)
    kind = written_as or arrays.names.kind
    scores = logsigmoid(changed.logits) if kind == "probs" else changed.logits
    held = [NAMES, *(reads.ignore or ())]
    write_calibrated(output, arrays, scores, kind, ignored=held, read=arrays.label_columns)
    record: dict[str, Any] = {
        "calibrator": str(calibrator),
        "source": file,
        "examples": len(changed),
        "labels": changed.size,
        "same": same if labelled else None,
        "before": measured_labels(multi) if labelled else None,
        "after": measured_labels(changed) if labelled else None,
        "predictions": str(output),
    }
    if as_json:
        screen.show_json(record)
        return
    screen.say(f"{file}: {read_as(arrays)}")
    if labelled:
        screen.say("mean over labels (macro):")
        show_change(record)
    else:
        screen.say("no labels: metrics not computed")
    if same:
        screen.say("in-sample and therefore optimistic; evaluate on held-out data")
    screen.say(f"predictions: {output}")
