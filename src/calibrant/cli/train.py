"""`calibrant train`: one network, by one method, in a folder of its own."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import complain, options, screen
from calibrant.cli.doctor import cores
from calibrant.cli.processes import ChildProcess, MainProcess
from calibrant.cli.train_output import View, show_result

if TYPE_CHECKING:
    from calibrant.training import Recipe

# Exit codes in addition to 0 and 2: the loss was not finite, the disk is full.
DIVERGED, FULL = 4, 5
_what, _how, _where = (
    options.panel(title) for title in ("What is trained", "How it is trained", "Where it runs")
)


# Options that take `name=value`, each with an example.
EXAMPLES = {
    "--data-set": "limit=2000",
    "--model-set": "width=2",
    "--method-set": "gamma=3",
    "--recipe-set": "warmup=1",
    "--probe": "every=100",
}


def _pairs(panel: Callable[..., Any], option: str, what: str) -> Any:
    """An option that takes `name=value` and may be repeated."""
    return panel(option, metavar="NAME=VALUE", help=f"{what} May be repeated.")


def train(
    dataset: Annotated[str, _what(help="See `calibrant list datasets`.")] = "digits",
    model: Annotated[
        str, _what(help="See `calibrant list models`; or package.module:factory.")
    ] = "small_cnn",
    method: Annotated[str, _what(help="See `calibrant list methods`.")] = "cross_entropy",
    data_set: Annotated[
        list[str] | None, _pairs(_what, "--data-set", "Option of the dataset, such as limit=2000.")
    ] = None,
    model_set: Annotated[
        list[str] | None, _pairs(_what, "--model-set", "Setting of the model, such as width=2.")
    ] = None,
    method_set: Annotated[
        list[str] | None, _pairs(_what, "--method-set", "Setting of the method, such as gamma=3.")
    ] = None,
    root: Annotated[Path | None, _what(help="Folder of the dataset's files.")] = None,
    epochs: Annotated[int, _how(help="Passes over the data.")] = 20,
    batch: Annotated[int, _how(help="Batch size.")] = 128,
    optimizer: Annotated[str, _how(help="sgd, adamw, muon or gd.")] = "sgd",
    lr: Annotated[
        float,
        _how(
            help="Highest learning rate; 0 is the optimizer's usual one: 0.1, or 0.003 for adamw "
            "and muon."
        ),
    ] = 0.0,
    recipe: Annotated[
        str,
        _how(
            help="plain, or refined: averaged weights of the epoch with the lowest validation NLL "
            "after temperature scaling.",
        ),
    ] = "plain",
    recipe_set: Annotated[
        list[str] | None,
        _pairs(
            _how,
            "--recipe-set",
            "Any other setting: momentum, weight_decay, schedule, warmup, clip, sam, average, "
            "stop_on, patience, precision, crop, flip, mixup, word_dropout, ...",
        ),
    ] = None,
    probe: Annotated[
        list[str] | None,
        _pairs(
            _how,
            "--probe",
            "Measure calibration, margins and curvature during training, into probe.jsonl: "
            "every=100, examples=1000, ...; see `calibrant list measures`.",
        ),
    ] = None,
    seed: Annotated[
        int,
        _how(
            help="Seed of splits, weights, order and augmentation.",
            callback=options.within("--seed", 0, 2**63 - 1),
        ),
    ] = 0,
    output: Annotated[
        Path | None,
        _where(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder of the run; by default one in runs/ named after all of the above.",
        ),
    ] = None,
    log: Annotated[list[str] | None, options.log(_where)] = None,
    devices: Annotated[
        int,
        _where(help="Processes that train together.", callback=options.within("--devices", 1, 256)),
    ] = 1,
    device: Annotated[str, _where(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int,
        _where(
            help="Threads of each process; 0 leaves it to torch, or shares the cores between "
            "--devices.",
            callback=options.within("--threads", 0, 1024),
        ),
    ] = 0,
    allow_drift: Annotated[
        list[str] | None,
        _where(
            "--allow-drift",
            metavar="NAME",
            help="What may differ from the unfinished run in the folder; may be repeated.",
        ),
    ] = None,
    as_json: options.Json = False,
    rank: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Train one network and measure it. Re-run the same command to resume.

    Writes config.json, history.jsonl, checkpoints, weights.pt, val.npz, test.npz and result.json.
    Exits with 4 if the loss was not finite, 5 if the disk is full, 130 or 143 after a signal.
    """
    asked = dict(locals())
    given = {
        "dataset": {"name": dataset, **settings("--data-set", data_set or [])},
        "model": {"name": model, **settings("--model-set", model_set or [])},
        "method": {"name": method, **settings("--method-set", method_set or [])},
    }
    own = {"epochs": epochs, "batch": batch, "optimizer": optimizer, "lr": lr}
    others = settings("--recipe-set", recipe_set or [])
    for name in own.keys() & others.keys():
        raise ValueError(f"--recipe-set {name} has an option of its own: --{name}")
    probed = settings("--probe", probe) if probe else None
    # Before torch is imported: the other processes import it meanwhile.
    with _launch(asked) as launched:
        import torch

        from calibrant.training import DiskFullError, DivergedError, InterruptedTrainingError, start
        from calibrant.training import train as run
        from calibrant.training.building import built
        from calibrant.training.distributed import FirstProcessError
        from calibrant.training.loggers import parse_logger
        from calibrant.training.recipe import named_settings, recipe_from

        for each in log or ():
            parse_logger(each)
        chosen = recipe_from({**own, **named_settings({"name": recipe, **others})})
        if count := threads or _share_of_cores(devices):
            torch.set_num_threads(count)
        splits, network, learner = built(**given, seed=seed, root=root)
        folder = output or Path("runs") / _folder_name(given, chosen, seed, probed)
        runtime = start(device, launched)
        view = View(folder, chosen.epochs, quiet=as_json or runtime.rank > 0)
        try:
            with closing(view):
                trained = run(
                    network,
                    learner,
                    splits,
                    chosen,
                    seed=seed,
                    folder=folder,
                    config={
                        f"{part}.{k}": v for part, each in given.items() for k, v in each.items()
                    },
                    allow_drift=allow_drift or (),
                    runtime=runtime,
                    probe=probed,
                    log=log or (),
                    on_step=view.step,
                    on_epoch=view.epoch,
                )
        except (InterruptedTrainingError, DivergedError, DiskFullError, FirstProcessError) as error:
            codes = {DivergedError: DIVERGED, DiskFullError: FULL, FirstProcessError: 2}
            code = codes.get(type(error)) or 128 + getattr(error, "number", 0)
            # The same happened in every process: one of them says so.
            if runtime.rank == 0:
                what = "diverged: " if isinstance(error, DivergedError) else ""
                complain(f"{what}{error}")
            raise typer.Exit(code) from error
        except ConnectionError as error:
            failed = launched.failed_process() if launched else None
            raise ConnectionError(failed or str(error)) from error
        finally:
            runtime.close()
        if runtime.rank == 0:
            if as_json:
                screen.show_json({"folder": str(folder), **trained.record})
            else:
                show_result(folder, trained, already=not view.trained)


def settings(option: str, given: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` pairs; a value is a number, true, false, a list, or else a string.

    >>> settings("--method-set", ["gamma=3", "source=paper", "detach=true"])
    {'gamma': 3, 'source': 'paper', 'detach': True}
    """
    # Not at the top: it would load numpy for --help.
    from calibrant.study.spec_text import value

    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise ValueError(f"{option} takes name=value, such as {EXAMPLES[option]}; got {each!r}")
        if name == "name":
            raise ValueError(f"{option} cannot set a name: it has an option of its own")
        if name in found:
            raise ValueError(f"{option} {name} is given twice")
        found[name] = value(text.strip())
    return found


def _launch(asked: Mapping[str, Any]) -> AbstractContextManager[MainProcess | ChildProcess | None]:
    """Start the other processes, or follow the one that started this one; None if alone."""
    rank, devices = asked["rank"], asked["devices"]
    # Under torchrun all processes are there already.
    if devices == 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return nullcontext()
    if rank:
        return ChildProcess(rank, devices)
    return MainProcess(["train", *_words(asked)], devices)


def _words(asked: Mapping[str, Any]) -> list[str]:
    """Options as they would be typed, but for those that matter in the first process alone."""
    words = []
    for name, value in asked.items():
        if value is not None and name not in ("rank", "as_json"):
            values = value if isinstance(value, list | tuple) else [value]
            words += [f"--{name.replace('_', '-')}={each}" for each in values]
    return words


def _share_of_cores(devices: int) -> int:
    """Threads of one of several processes; 0 leaves it to torch."""
    return 0 if devices == 1 or "OMP_NUM_THREADS" in os.environ else max(1, cores() // devices)


def _folder_name(
    given: dict[str, Any], recipe: "Recipe", seed: int, probe: dict[str, Any] | None
) -> str:
    """Readable names and a digest of everything."""
    all_of_it = [given, recipe.flat(), seed, *([] if probe is None else [probe])]
    text = json.dumps(all_of_it, sort_keys=True, default=str)
    names = [given[part]["name"] for part in ("dataset", "model", "method")]
    plain = ["".join(c if c.isalnum() or c == "_" else "_" for c in name)[:40] for name in names]
    return "-".join([*plain, hashlib.sha256(text.encode()).hexdigest()[:8]])
