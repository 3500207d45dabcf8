"""Calibrators of several labels cannot be exported whole."""

from typing import Any

from calibrant.calibrators.multi_label import MultiLabelCalibrator


def refuse_labels(calibrator: Any) -> None:
    """Refuse a calibrator of several labels, and say what can be exported of it."""
    if isinstance(calibrator, MultiLabelCalibrator):
        raise TypeError(
            "a MultiLabelCalibrator has no export of its own: call it on logits, use `cal.sliced` "
            "with export_onnx (its input `slice` is the column of the label), or one of "
            "`cal.calibrators`"
        )
