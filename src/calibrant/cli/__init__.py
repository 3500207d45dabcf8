"""The command line, one file for each command: parse, call, print."""

import os
import sys
import traceback
from collections.abc import Sequence

from calibrant.advice import AdvisedError
from calibrant.extras import need

# What the library raises when something is wrong with its input, a file or the installation.
EXPECTED = (ValueError, TypeError, OSError, ImportError, MemoryError)
# sysexits.h calls it EX_SOFTWARE. Python's own 1 would read as a limit that was exceeded.
INTERNAL = 70
# As the shell reports a process that ended by SIGPIPE.
PIPE = 141
# Longest message in characters: a path and a few sentences.
LONGEST = 1500


def main(args: Sequence[str] | None = None) -> int:
    """Run a command; its exit code is one of those in docs/reliability.md."""
    given = list(sys.argv[1:] if args is None else args)
    # Accepted also after the command, where the parser takes no global option.
    debug = "--debug" in given
    try:
        for module in ("typer", "rich"):
            need(module, extra="cli", what="the command line")
        from calibrant.cli.app import run

        code = run([each for each in given if each != "--debug"])
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except (SystemExit, BrokenPipeError) as error:
        # The parser turns a closed pipe into exit code 1, which would read as an exceeded limit.
        if not isinstance(error, BrokenPipeError) and not isinstance(
            error.__context__, BrokenPipeError
        ):
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, the flush at exit must not fail again
        return PIPE
    except Exception as error:
        ours = not isinstance(error, EXPECTED)
        message = one_line(error)
        if debug:
            traceback.print_exc()
        elif ours:
            complain(f"internal error: {type(error).__name__}: {message} (--debug shows where)")
        else:
            complain(message)
        return INTERNAL if ours else 2


def complain(message: str) -> None:
    """Print what went wrong as one line of stderr."""
    print(f"calibrant: {printable(message)}", file=sys.stderr)


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks, control characters and error numbers."""
    text = error.on_command_line if isinstance(error, AdvisedError) else str(error)
    text = text or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return printable(text)


def printable(text: str) -> str:
    r"""One line that is not too long; its end, which says what to do, is kept.

    >>> printable("a\n  b\x1b[31m")
    'a b [31m'
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) <= LONGEST:
        return line
    end = LONGEST // 4
    return f"{line[: LONGEST - end - 5]} ... {line[-end:]}"
