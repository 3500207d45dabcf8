"""`calibrant export`: a calibrator as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli import options, screen
from calibrant.cli.calibrate_output import title_of


def export(
    calibrator: options.Calibrator,
    output: Annotated[Path, options.output(metavar="PATH", help="File to write, .onnx.")],
    probs: Annotated[
        bool,
        typer.Option("--probs", help="The graph takes probabilities, for example of a forest."),
    ] = False,
) -> None:
    """Export a calibrator as an ONNX graph, after checking that both give equal outputs."""
    if output.suffix.lower() != ".onnx":
        raise ValueError(f"cannot export to {output}: expected a name that ends in .onnx")
    from calibrant.calibrators import MultiCalibrator, MultiLabelCalibrator, SlicedCalibrator
    from calibrant.calibrators.storage import load
    from calibrant.export import export_onnx

    fitted = load(calibrator)
    if isinstance(fitted, MultiLabelCalibrator):
        raise ValueError(
            f"{calibrator}: calibrators of several labels have no ONNX graph of their own; in "
            "Python, export `cal.sliced`: its input `slice` is the column of the label"
        )
    if isinstance(fitted, MultiCalibrator):
        raise ValueError(f"{calibrator}: a multicalibrator has no ONNX graph, as it needs columns")
    export_onnx(fitted, output, kind="probs" if probs else "logits")
    given = "given_probs" if probs else "logits"
    if isinstance(fitted, SlicedCalibrator):
        given += ", slice"
    screen.say(f"{title_of(fitted)} of {fitted.classes:,} classes; {given} -> log_probs, probs")
    screen.say(f"onnx: {output}")
