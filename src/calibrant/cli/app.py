"""The commands put together, and how their notes and refusals are shown."""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from calibrant import __version__
from calibrant.cli import complain, one_line, printable
from calibrant.cli.apply import apply
from calibrant.cli.audit import audit
from calibrant.cli.compare import compare
from calibrant.cli.doctor import doctor
from calibrant.cli.export import export
from calibrant.cli.fit import fit
from calibrant.cli.listing import listing
from calibrant.cli.report import report
from calibrant.cli.study import study
from calibrant.cli.train import train
from calibrant.cli.watch import watch
from calibrant.cli.worker import worker
from calibrant.deprecated import replace_options

COMMANDS: dict[str, Callable[..., None]] = {
    "audit": audit,
    "watch": watch,
    "compare": compare,
    "fit": fit,
    "apply": apply,
    "export": export,
    "train": train,
    "study": study,
    "worker": worker,
    "report": report,
    "list": listing,
    "doctor": doctor,
}

EXIT_CODES = (
    "Exit codes: 0 success, 1 a limit was exceeded, calibration broke or a run of a study failed, "
    "2 an error in the input, 4 the loss was not finite, 5 the disk is full, 70 an internal error, "
    "130 and 143 after a signal, 141 if the output pipe was closed."
)
app = typer.Typer(
    name="calibrant",
    help="Measure, repair and train calibrated classifiers.",
    epilog=EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command that refuses to choose between two values of an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        order: list[Any] = [*self.make_parser(ctx).parse_args(list(args))[2]]
        single = [
            each.opts[0]
            for each in order
            if each.param_type_name == "option" and not (each.multiple or each.is_flag)
        ]
        for option, times in Counter(single).items():
            if times > 1:
                often = "twice" if times == 2 else f"{times} times"
                raise ValueError(f"{option} was given {often}: give it once")
        return super().parse_args(ctx, args)


for _name, _command in COMMANDS.items():
    app.command(_name, cls=_Command)(_command)


def _show_version(requested: bool) -> bool:
    if requested:
        print(f"calibrant {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    # Both are dealt with before a command runs: here they are declared, for --help.
    pass


# typer keeps click's exceptions in different places from release to release.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run(args: Sequence[str]) -> int:
    """Parse the arguments and run the command they name; without any, show the help."""
    try:
        with notes():
            given = replace_options(args) or ["--help"]
            code = app(given, prog_name="calibrant", standalone_mode=False)
    except _UsageError as error:
        complain(_usage(error))
        return 2
    return code if isinstance(code, int) else 0


def _usage(error: Exception) -> str:
    message = one_line(ValueError(error.format_message()))  # type: ignore[attr-defined]
    message = message.replace(": Value error, ", ": ", 1)
    context = error.ctx  # type: ignore[attr-defined]
    return message if context is None else f"{message} (see {context.command_path} --help)"


@contextmanager
def notes() -> Iterator[None]:
    """Show what the library warns of as `note: ...` on stderr, each once; hide the rest."""
    seen = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = printable(str(message))
        if text not in seen:
            seen.add(text)
            print(f"note: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
