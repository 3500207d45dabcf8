"""`calibrant audit`: every metric of one file of predictions, a figure, a verdict."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli import options, screen
from calibrant.cli.audit_output import default_output, show

if TYPE_CHECKING:
    import calibrant.predictions

EXAMPLE, EXAMPLES = "overconfident", 10_000
# What is written unless told otherwise: the library it takes, and how its name ends.
OUTPUTS = {"figure": ("matplotlib", "reliability.png"), "page": ("jinja2", "audit.html")}


def audit(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="npz, csv, parquet or safetensors; a quoted glob pattern reads several files.",
            show_default=False,
        ),
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help=f"Audit an embedded example; FILE is then its name, {EXAMPLE} if left out.",
            rich_help_panel=options.READING,
        ),
    ] = False,
    logits: options.Logits = None,
    probs: options.Probs = None,
    labels: options.Labels = "labels",
    ignore: options.Ignore = None,
    max_expansion: options.Expansion = 100.0,
    bins: options.Bins = 15,
    intervals: Annotated[
        bool, typer.Option(help="Compute intervals and tests.", rich_help_panel=options.MEASURING)
    ] = True,
    resamples: options.Resamples = 1000,
    level: options.Level = 0.95,
    interval_type: Annotated[
        options.IntervalType,
        typer.Option(
            metavar="KIND",
            help=f"Bootstrap interval type: {', '.join(options.IntervalType)}.",
            rich_help_panel=options.MEASURING,
        ),
    ] = options.IntervalType.basic,
    seed: options.Seed = 0,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Reliability diagram, png, svg or pdf. Default: a png in the current folder.",
            show_default=False,
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    no_figure: Annotated[
        bool, typer.Option("--no-figure", help="Write no figure.", rich_help_panel=options.OUTPUT)
    ] = False,
    classwise: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Reliability diagrams of all classes.",
            show_default=False,
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Self-contained HTML file. Default: in the current folder.",
            show_default=False,
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    no_page: Annotated[
        bool, typer.Option("--no-page", help="Write no page.", rich_help_panel=options.OUTPUT)
    ] = False,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            help="Bins of equal mass in the diagram.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    as_json: options.Json = False,
    max_ece: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Exit with code 1 if ece is above X.",
            show_default=False,
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
) -> None:
    """Measure how well confidence matches accuracy: metrics, tests, a diagram, a page."""
    if not example and file is None:
        raise ValueError("give a file to audit, or --example")
    if max_ece is not None and not max_ece >= 0:
        raise ValueError(f"--max-ece must be at least 0, got {max_ece:g}")
    source = EXAMPLE if file is None else file
    figure = output_path("figure", source, figure, write=not no_figure)
    page = output_path("page", source, page, write=not no_page)
    if page is not None:
        from calibrant.files.atomic import check_target

        check_target(page)
    if example:
        predictions, truth = load_example(source, bins)
    else:
        from calibrant.predictions import Predictions

        truth = None
        predictions = Predictions.load(
            source,
            logits=logits,
            probs=probs,
            labels=labels,
            ignore=ignore or (),
            max_expansion=max_expansion,
        )
    from calibrant.report.audit import audit as audit_predictions

    # Figures first: one that cannot be written should be known before the long part.
    _draw(predictions, source, figure, classwise, bins=bins, level=level, adaptive=adaptive)
    files = {"figure": figure, "classwise figure": classwise, "page": page}
    times = resamples if intervals else 0
    with screen.progress(times, f"resampling {times} times") as step:
        found = audit_predictions(
            predictions,
            name=source,
            bins=bins,
            level=level,
            interval_type=interval_type.value,
            resamples=times,
            seed=seed,
            progress=step,
        )
    if page is not None:
        found.save(page)
    ece = found.metrics["ece"].value
    passed = max_ece is None or ece <= max_ece
    if as_json:
        limit = None if max_ece is None else {"max_ece": max_ece, "passed": passed}
        paths = {key.replace(" ", "_"): path and str(path) for key, path in files.items()}
        screen.show_json(found.to_dict() | {"truth": truth, "limit": limit} | paths)
    else:
        show(found, truth, {key: path for key, path in files.items() if path is not None})
    if not passed:
        print(f"calibrant: ece {ece:.4f} is above --max-ece {max_ece:g}", file=sys.stderr)
        raise typer.Exit(1)


def output_path(what: str, source: str, named: Path | None, *, write: bool) -> Path | None:
    """Where the figure or the page goes; nowhere, with a note, if it cannot be made unasked."""
    if not write:
        if named is not None:
            raise ValueError(f"give --{what} or --no-{what}, not both")
        return None
    if named is not None:
        return named
    needed, ending = OUTPUTS[what]
    if find_spec(needed) is None:
        print(f"note: no {what}; it needs pip install 'calibrant[report]'", file=sys.stderr)
        return None
    return default_output(source, ending)


def load_example(
    name: str, bins: int
) -> tuple["calibrant.predictions.Predictions", dict[str, float]]:
    """Draw from an embedded example, and work out its true calibration error."""
    from calibrant.data import SYNTHETIC

    if name not in SYNTHETIC:
        raise ValueError(f"no example {name!r}; expected one of {', '.join(SYNTHETIC)}")
    synthetic = SYNTHETIC[name]
    truth = {"error": synthetic.true_error(), "binned_error": synthetic.true_binned_error(bins)}
    return synthetic.sample(EXAMPLES, seed=0).predictions, truth


def _draw(
    predictions: "calibrant.predictions.Predictions",
    source: str,
    figure: Path | None,
    classwise: Path | None,
    *,
    bins: int,
    level: float,
    adaptive: bool,
) -> None:
    from calibrant import report

    title = Path(source).name
    if figure is not None:
        drawn = report.reliability_diagram(
            predictions, bins=bins, level=level, adaptive=adaptive, title=title
        )
        report.save(drawn, figure)
    if classwise is not None:
        report.save(
            report.classwise_diagrams(predictions, bins=bins, level=level, title=title), classwise
        )
