"""Files with a JSON object in each line, treated as untrusted input."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrant.files.checks import check_file, human

# A line holds a question with its prompts; longer ones are not read into memory.
MOST_BYTES = 64 * 2**20


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line that is not blank.

    Raises:
        ValueError: a line is too long, no UTF-8, no complete JSON, nested too deeply, or no object.
    """
    for number, line in lines(path):
        yield number, parsed(path, number, line)


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line that is not blank."""
    check_file(path)
    with open(path, "rb") as handle:
        number = 0
        while line := handle.readline(MOST_BYTES + 1):
            number += 1
            if len(line) > MOST_BYTES:
                raise ValueError(f"{path}: line {number} is longer than {human(MOST_BYTES)}")
            if line.strip():
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The object of a line."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path}: line {number} is not UTF-8 text") from None
    except RecursionError:
        raise ValueError(f"{path}: line {number} is nested too deeply") from None
    except ValueError:
        raise ValueError(
            f"{path}: line {number} is no complete JSON; expected an object in each line, and the "
            "last line may be cut off"
        ) from None
    if not isinstance(record, dict):
        raise ValueError(f"{path}: line {number} is no JSON object, but {_shown(record)}")
    return record


def _shown(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
