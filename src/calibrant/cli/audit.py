"""`calibrant audit`: every metric of one or several models, a figure, a page, a verdict."""

import math
import re
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from calibrant.cli import complain, options, screen
from calibrant.cli.audit_labels import audit_labels
from calibrant.cli.audit_table import audit_table, hide_password, is_table
from calibrant.cli.options import measuring, reading, written
from calibrant.cli.screen import print_table, say
from calibrant.setting_errors import did_you_mean

if TYPE_CHECKING:
    import calibrant.predictions
    from calibrant.metrics import Interval
    from calibrant.report.audit import Audit
    from calibrant.report.model_audits import ModelAudits

EXAMPLE, EXAMPLES = "overconfident", 10_000
# What is written unless told otherwise: the library it takes, and how its name ends.
OUTPUTS = {"figure": ("matplotlib", "reliability.png"), "page": ("jinja2", "audit.html")}

READ = options.TableReading()


@options.with_reading
def audit(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="npz, csv, tsv, parquet or safetensors file; several are models to compare. A "
            "folder or a database URL, such as postgres://...#table, is one table.",
        ),
    ] = None,
    pool: Annotated[
        bool, reading("--pool", help="The files are parts of one set of examples, not models.")
    ] = False,
    unpaired: Annotated[bool, reading("--unpaired", help=options.UNPAIRED)] = False,
    example: Annotated[
        bool,
        reading(
            "--example",
            help=f"Audit an embedded example; FILE is then its name, {EXAMPLE} if left out.",
        ),
    ] = False,
    multi_label: options.MultiLabel = False,
    reads: options.TableReading = READ,
    bins: options.Bins = 15,
    intervals: Annotated[bool, measuring(help="Compute intervals and tests.")] = True,
    resamples: options.Resamples = 1000,
    level: options.Level = 0.95,
    interval_type: Annotated[
        options.IntervalType,
        measuring(
            metavar="KIND", help=f"Bootstrap interval type: {', '.join(options.IntervalType)}."
        ),
    ] = options.IntervalType.basic,
    seed: options.Seed = 0,
    thresholds: Annotated[
        str | None,
        measuring(
            metavar="P,...",
            help="Probabilities at which positives of two classes are counted. Default: 0.05,...",
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        written(
            metavar="PATH",
            help="Reliability diagram, png, svg or pdf. Default: a png in the current folder.",
        ),
    ] = None,
    no_figure: Annotated[bool, written("--no-figure", help="Write no figure.")] = False,
    classwise: Annotated[
        Path | None, written(metavar="PATH", help="Reliability diagrams of all classes.")
    ] = None,
    page: Annotated[
        Path | None,
        written(metavar="PATH", help="Self-contained HTML file. Default: in the current folder."),
    ] = None,
    no_page: Annotated[bool, written("--no-page", help="Write no page.")] = False,
    adaptive: Annotated[
        bool, written("--adaptive", help="Bins of equal mass in the diagram.")
    ] = False,
    as_json: options.Json = False,
    max_ece: Annotated[
        float | None,
        written(
            metavar="X",
            help="Exit with code 1 if ECE is above X; of two classes, that of P(positive).",
        ),
    ] = None,
) -> None:
    """Measure how well confidence matches accuracy: metrics, tests, a diagram, a page."""
    if not example and not files:
        raise ValueError("give a file to audit, or --example")
    if max_ece is not None and not max_ece >= 0:
        raise ValueError(f"--max-ece must be at least 0, got {max_ece:g}")
    if example and files and len(files) > 1:
        raise ValueError(f"--example audits one example, got {len(files)} names")
    given: dict[str, Any]
    settings: dict[str, Any]
    if multi_label:
        if reads.of_tables:
            what = ", ".join(reads.of_tables)
            raise ValueError(
                f"{what} cannot be used with --multi-label: audits of several labels have no slices"
            )
        given = {"figure": figure, "classwise": classwise, "thresholds": thresholds}
        given |= {"adaptive": adaptive, "unpaired": unpaired, "pool": pool, "example": example}
        given |= {"confidence": reads.confidence, "correct": reads.correct}
        refused = [f"--{name.removeprefix('--')}" for name, value in given.items() if value]
        if refused or not files or len(files) > 1:
            what = ", ".join(refused) or f"{len(files or [])} files"
            raise ValueError(f"{what} cannot be used with --multi-label, which takes one file")
        target = output_path("page", files[0], page, write=not no_page)
        settings = {"bins": bins, "level": level, "interval_type": interval_type.value}
        settings |= {"resamples": resamples if intervals else 0, "seed": seed}
        audit_labels(
            files[0], reads, page=target, as_json=as_json, max_ece=max_ece, settings=settings
        )
        return
    if files and not example and is_table(files, reads, pool=pool):
        given = {"figure": figure, "classwise": classwise}
        given |= {"thresholds": thresholds, "adaptive": adaptive, "unpaired": unpaired}
        given |= {"interval-type": interval_type is not options.IntervalType.basic}
        refused = [f"--{name}" for name, value in given.items() if value]
        if refused:
            raise ValueError(f"{', '.join(refused)} cannot be used with tables")
        page = output_path("page", hide_password(files[0]), page, write=not no_page)
        draws = resamples if intervals else 0
        measuring_options = {"bins": bins, "level": level, "seed": seed, "draws": draws}
        audit_table(files, reads, page=page, as_json=as_json, max_ece=max_ece, **measuring_options)
        return
    in_memory = reads.in_memory
    counted_at = None if thresholds is None else probabilities(thresholds)
    names = {} if example else model_names(files or [], pool=pool)
    source = EXAMPLE if not files else files[0] if len(names) <= 1 else "models"
    figure = output_path("figure", source, figure, write=not no_figure)
    page = output_path("page", source, page, write=not no_page)
    if page is not None:
        from calibrant.files.atomic import check_target

        check_target(page)
    truth = None
    models: dict[str, calibrant.predictions.Predictions] = {}
    if example:
        models[source], truth = load_example(source, bins)
    else:
        models = _models(names, in_memory)
    if in_memory.positive is not None:
        models = {name: each.with_positive(in_memory.positive) for name, each in models.items()}
    from calibrant import report
    from calibrant.report.audit import audit as audit_predictions

    several = len(models) > 1
    predictions = next(iter(models.values()))
    if counted_at is not None and predictions.classes != 2:
        raise ValueError(f"--thresholds needs two classes, got {predictions.classes}")

    # Figures first: one that cannot be written should be known before the long part.
    drawing: dict[str, Any] = {"bins": bins, "level": level, "title": Path(source).name}
    if figure is not None:
        with screen.working("drawing the reliability diagram"):
            drawn = report.reliability_diagram(
                models if several else predictions, adaptive=adaptive, **drawing
            )
            report.save(drawn, figure)
    if classwise is not None:
        if several:
            raise ValueError("--classwise draws one model; give one file")
        report.save(report.classwise_diagrams(predictions, **drawing), classwise)
    outputs = {"figure": figure, "classwise figure": classwise, "page": page}
    times = resamples if intervals else 0
    settings = {"bins": bins, "level": level, "interval_type": interval_type.value}
    settings |= {"resamples": times, "seed": seed}
    settings |= {} if counted_at is None else {"thresholds": counted_at}
    found: Audit | ModelAudits
    with screen.progress(times * len(models), f"resampling {times} times") as step:
        if several:
            paired = False if unpaired else None
            compared = audit_predictions(models, paired=paired, progress=step, **settings)
            files_of = {name: _file(paths, in_memory) for name, paths in names.items()}
            found = compared.with_files(files_of)
            audits = found.audits
        else:
            alone = audit_predictions(predictions, name=source, progress=step, **settings)
            found = alone if example else replace(alone, file=_file(names[source], in_memory))
            audits = {source: found}
    if page is not None:
        with screen.working("writing the page"):
            found.save(page)
    errors = {name: each.metrics[each.gate].value for name, each in audits.items()}
    above = [name for name, ece in errors.items() if max_ece is not None and ece > max_ece]
    written_to = {key: path for key, path in outputs.items() if path is not None}
    if as_json:
        limit = None if max_ece is None else {"max_ece": max_ece, "passed": not above}
        paths = {key.replace(" ", "_"): path and str(path) for key, path in outputs.items()}
        screen.show_json(found.to_dict() | {"truth": truth, "limit": limit} | paths)
    elif several:
        show_models(cast("ModelAudits", found), written_to)
    else:
        show(audits[source], truth, written_to)
    if above:
        named = f" of {', '.join(above)}" if several else ""
        complain(
            f"{audits[above[0]].gate}{named} {errors[above[0]]:.4f} is above --max-ece {max_ece:g}"
        )
        raise typer.Exit(1)


def probabilities(text: str) -> list[float]:
    """Read the value of `--thresholds`.

    >>> probabilities("0.01, 0.5")
    [0.01, 0.5]
    """
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= each <= 1 for each in found):
        raise ValueError(
            f"--thresholds must be probabilities in [0, 1] such as 0.1,0.5, got {text}"
        )
    return found


def _file(paths: Sequence[str], reads: options.Reading) -> str:
    """How a command names the predictions: the file, and the options it was read with."""
    return "FILE" if len(paths) > 1 else shlex.join([paths[0], *reads.given])


def model_names(files: Sequence[str], *, pool: bool) -> dict[str, list[str]]:
    """Name of each model to its files: one model for each file, or a single one if pooled."""
    from calibrant.files import expand

    found = [str(path) for file in files for path in expand(file)]
    if pool or len(found) == 1:
        return {files[0]: list(files)}
    stems = [Path(path).stem for path in found]
    names = stems if len(set(stems)) == len(stems) else found
    return {name: [path] for name, path in zip(names, found, strict=True)}


def _models(
    names: Mapping[str, Sequence[str]], reads: options.Reading
) -> "dict[str, calibrant.predictions.Predictions]":
    """Predictions of each model, given the files of each."""
    if reads.format is None:
        return {name: _pooled(paths, reads) for name, paths in names.items()}
    from calibrant.language_models import check_same_tasks

    logs = {name: reads.log(paths) for name, paths in names.items()}
    check_same_tasks(list(logs.values()))
    for name, log in logs.items():
        print(f"note: {name}: {log.facts}", file=sys.stderr)
    return {name: log.predictions for name, log in logs.items()}


def _pooled(paths: Sequence[str], reads: options.Reading) -> "calibrant.predictions.Predictions":
    """Predictions of one model, from one or several files or patterns."""
    from calibrant.predictions import Predictions

    parts = [reads.load(path) for path in paths]
    return parts[0] if len(parts) == 1 else Predictions.concat(parts)


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
        raise ValueError(f"no example {name!r}; {did_you_mean(name, SYNTHETIC)}")
    synthetic = SYNTHETIC[name]
    truth = {"error": synthetic.true_error(), "binned_error": synthetic.true_binned_error(bins)}
    return synthetic.sample(EXAMPLES, seed=0).predictions, truth


def show(found: "Audit", truth: Mapping[str, float] | None, files: Mapping[str, Path]) -> None:
    """Print the tables, the verdict, and which files were written."""
    say(f"{found.name}: {found.facts}")
    say("")
    print_table(found.metrics_table())
    if found.tests:
        print_table(found.tests_table())
    if found.summary.classes == 2:
        print_table(found.thresholds_table())
    for line in found.remarks:
        say(line)
    if truth is not None:
        say(truth_line(truth, found.metrics["ece"], found.bins))
    if found.verdict:
        say(found.verdict, style="bold")
    if found.next_step is not None:
        say(str(found.next_step))
    for what, path in files.items():
        say(f"{what}: {path}")


def show_models(found: "ModelAudits", files: Mapping[str, Path]) -> None:
    """Print one table of all models, the verdicts, and which files were written."""
    say(found.facts)
    say("")
    hidden = print_table(found.table, keep=3)
    if found.differences:
        say("* best, = not significantly worse than the best")
    if hidden:
        say(f"hidden, terminal too narrow: {', '.join(hidden)}; see the page or --json")
    for name, each in found.audits.items():
        if each.verdict:
            say(f"{name}: {each.verdict}")
            say(textwrap.indent(str(each.next_step), "  "))
    if found.verdict:
        say(found.verdict, style="bold")
    for what, path in files.items():
        say(f"{what}: {path}")


def truth_line(truth: Mapping[str, float], ece: "Interval", bins: int) -> str:
    """Say the true error of an example, and whether the interval of the ECE contains it."""
    line = f"true error {truth['error']:.4f}, over {bins} bins {truth['binned_error']:.4f}"
    if math.isnan(ece.low):
        return line
    first, second = (ece.low <= truth[name] <= ece.high for name in ("error", "binned_error"))
    words = {(True, True): "both", (True, False): "the first", (False, True): "the second"}
    return f"{line}; the interval of ece contains {words.get((first, second), 'neither')}"


def default_output(source: str, ending: str) -> Path:
    """Name what is written about a file, a pattern or an example, in the current folder.

    >>> str(default_output("runs/test.npz", "reliability.png"))
    'test.reliability.png'
    >>> str(default_output("parts/*.parquet", "audit.html"))
    'parts.audit.html'
    """
    path = Path(source)
    names = (re.sub(r"[*?!\[\]]", "", name).strip(" -_.") for name in (path.stem, path.parent.name))
    return Path(f"{next(filter(None, names), 'predictions')}.{ending}")
