"""The command line, one file for each command: parse, call, print."""

import sys
import traceback
from collections.abc import Sequence

from calibrant.extras import need

# What the library raises when something is wrong with its input, a file or the installation.
EXPECTED = (ValueError, TypeError, OSError, ImportError, MemoryError)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 if a limit was exceeded, 2 after an error, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if args is None else args)
    # Wanted also behind the command, where the parser would not take a global option.
    debug = "--debug" in given
    try:
        for module in ("typer", "rich"):
            need(module, extra="cli", what="the command line")
        from calibrant.cli.app import run

        return run([each for each in given if each != "--debug"])
    except KeyboardInterrupt:
        return 130
    except EXPECTED as error:
        if debug:
            traceback.print_exc()
        else:
            print(f"calibrant: {one_line(error)}", file=sys.stderr)
        return 2


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks, control characters and error numbers."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.strerror}: {error.filename}"
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
