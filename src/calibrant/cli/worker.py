"""`calibrant worker`: help with the runs of a study that was started on this machine."""

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli import complain, options
from calibrant.cli.screen import say
from calibrant.cli.study import AllowCode


def worker(
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="Folder of the study.")],
    threads: Annotated[
        int,
        typer.Option(
            help="Threads of this worker; 0 leaves it to torch.",
            callback=options.within("--threads", 0, 1024),
        ),
    ] = 1,
    allow_code: AllowCode = None,
    log: Annotated[list[str] | None, options.log(typer.Option)] = None,
) -> None:
    """Join a study: train run after run until none is left.

    Exits with 5 if the disk is full, 130 or 143 after a signal; its run is saved and released.
    """
    import torch

    from calibrant.cli.train import FULL
    from calibrant.study.worker import work
    from calibrant.training import DiskFullError, InterruptedTrainingError

    if threads:
        torch.set_num_threads(threads)
    try:
        owner = f"worker-{os.getpid()}-{secrets.token_hex(4)}"
        done = work(folder, owner=owner, allow_code=allow_code or (), log=log or ())
    except InterruptedTrainingError as error:
        raise typer.Exit(128 + error.number) from error
    except DiskFullError as error:
        complain(str(error))
        raise typer.Exit(FULL) from error
    failed = len(done) - done.count("done")
    say(f"{len(done)} runs trained, {failed} of them failed; no runs left")
    if failed:
        raise typer.Exit(1)
