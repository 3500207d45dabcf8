"""`calibrant study`: a grid of training runs that runs, resumes and reports."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import complain, options, screen
from calibrant.cli.study_output import View, show_estimates, show_study

if TYPE_CHECKING:
    from calibrant.study.grid import Study

_what, _how = options.panel("What is run"), options.panel("How it is run")


def _check_code(paths: list[str] | None) -> list[str] | None:
    for path in paths or ():
        module, _, factory = path.partition(":")
        if not (module and factory):
            raise ValueError(f"--allow-code takes package.module:factory, got {path!r}")
    return paths


AllowCode = Annotated[
    list[str] | None,
    _what(
        "--allow-code",
        metavar="MODULE:FACTORY",
        help="Code of yours, found by PYTHONPATH, that the study may run; may be repeated.",
        callback=_check_code,
    ),
]


def study(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="A TOML file, or the name of an included study.")
    ],
    output: Annotated[
        Path | None,
        _what(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder of the results; by default runs/ and the study's name.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        _what(
            "--set",
            metavar="PLACE=VALUE",
            help="Override a value of the file, such as recipe.epochs=5; may be repeated.",
        ),
    ] = None,
    allow_code: AllowCode = None,
    yes: Annotated[bool, _what("--yes", help="Allow more than 10,000 runs.")] = False,
    workers: Annotated[
        int | None,
        _how(
            help="Processes that train side by side; 1 by default.",
            callback=options.within("--workers", 1, 1024),
        ),
    ] = None,
    dask: Annotated[
        str | None,
        _how(
            metavar="ADDRESS",
            help="Address of a Dask scheduler; train on its workers.",
        ),
    ] = None,
    log: Annotated[list[str] | None, options.log(_how)] = None,
    dry_run: Annotated[
        bool,
        _how("--dry-run", help="List the runs and estimate their time."),
    ] = False,
    retry: Annotated[bool, _how("--retry", help="Try runs that failed or diverged again.")] = False,
    as_json: options.Json = False,
) -> None:
    """Run a study. Re-run the same command to resume; finished runs are not trained again.

    Writes rows.jsonl and rows.csv (every metric with its interval), cells.json, and a folder for
    each run with its predictions, history and weights. Exits with 1 if a run did not succeed, 5
    if the disk is full, 130 or 143 after a signal; what was done is saved. Datasets are read from
    the folder in $CALIBRANT_DATA, or from the `root` of an image_folder or mask_folder in SPEC.
    """
    from calibrant.cli.train import FULL
    from calibrant.report.study_page import study_page
    from calibrant.study.cluster import run_on_cluster
    from calibrant.study.runner import run
    from calibrant.study.runs import Runs
    from calibrant.study.spec import read
    from calibrant.training import DiskFullError, InterruptedTrainingError

    if dask is not None and workers is not None:
        raise ValueError(
            "--workers starts processes here, --dask uses those of a cluster: give one"
        )
    allowed = tuple(allow_code or ())
    chosen = read(found(spec), overrides=sets or (), allow_code=allowed, many=yes)
    if dry_run:
        _dry_run(chosen, as_json=as_json, workers=workers or 1)
        return
    folder = output or Path("runs") / chosen.name
    runs = partial(run, workers=workers or 1)
    if dask is not None:
        runs = partial(run_on_cluster, address=dask)
    try:
        with closing(View(chosen, folder, quiet=as_json)) as view:
            rows = runs(
                chosen,
                folder,
                allow_code=allowed,
                retry=retry,
                log=log or (),
                watch=view.update,
            )
    except (InterruptedTrainingError, DiskFullError) as error:
        complain(str(error))
        number = getattr(error, "number", None)
        raise typer.Exit(FULL if number is None else 128 + number) from error
    ended = Runs(folder, chosen.by_id).states()
    if as_json:
        counts: dict[str, int] = {}
        for state in ended:
            counts[state.status] = counts.get(state.status, 0) + 1
        screen.show_json({"folder": str(folder), "cells": counts, "rows": len(rows)})
    else:
        show_study(chosen, folder, rows, ended)
        if rows:
            screen.say(f"report: {study_page(folder)}")
    if any(state.status != "done" for state in ended):
        raise typer.Exit(1)


def found(spec: str) -> Path:
    """A file of the user's, or one that comes with the package."""
    ours = Path(__file__).parents[1] / "study" / "specs"
    known = sorted(path.stem for path in ours.glob("*.toml"))
    if spec in known and not Path(spec).exists():
        return ours / f"{spec}.toml"
    if not Path(spec).exists():
        raise FileNotFoundError(f"no file {spec}; included studies: {', '.join(known)}")
    return Path(spec)


def _dry_run(chosen: "Study", *, as_json: bool, workers: int) -> None:
    from calibrant.study.estimate import estimates

    if not as_json:
        screen.say(f"{chosen.name}: {chosen.count} runs")
    times: list[Any] = estimates(chosen, workers=workers)
    if as_json:
        screen.show_json([{"cell": e.label, "seconds": e.seconds, "seeds": e.cells} for e in times])
    else:
        show_estimates(times, workers)
