"""Find the arrays of predictions in a file, by name."""

import difflib
import re
import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from calibrant.checks import Kind
from calibrant.files import is_table
from calibrant.files.checks import listed

# Read if present.
OPTIONAL = ("weights", "groups")
IGNORE = "(ignore=[...] in Python; --ignore NAME, which may be a pattern, on the command line)"
OPTIONS = "(logits=, probs=, labels= in Python; --logits, --probs, --labels on the command line)"


def which_scores(
    path: Path, held: Sequence[str], logits: str | None, probs: str | None, labels: str
) -> tuple[Kind, str]:
    """Find the array of scores in a file, and their kind."""
    if logits and probs:
        raise ValueError("pass logits=... or probs=..., not both")
    if logits or probs:
        return ("logits", logits) if logits else ("probs", str(probs))
    both = "logits" in held and "probs" in held
    if both or labels not in held or not {"logits", "probs"} & set(held):
        what = (
            "has both 'logits' and 'probs'; name the one to read"
            if both
            else f"has {listed(held)}; need {labels!r} and one of 'logits' or 'probs', "
            "or name the arrays to read"
        )
        raise ValueError(f"{path} {what} {OPTIONS}")
    return ("logits", "logits") if "logits" in held else ("probs", "probs")


def optional_names(
    paths: Sequence[Path],
    held: Sequence[Sequence[str]],
    scores: str,
    labels: str,
    ignore: Sequence[str] = (),
) -> list[str]:
    """Check all names of the parts, and return which of weights and groups they have.

    A damaged name must not silently drop an array, so archives may hold known names only. Other
    columns of tables give a warning, or an error if they resemble a known name.
    """
    for name in ignore:
        if name in (scores, labels):
            raise ValueError(f"cannot ignore {name!r}: it is read")
    found = []
    for path, names in zip(paths, held, strict=True):
        _check_others(path, names, scores, labels, ignore)
        found.append([name for name in OPTIONAL if name in names and name not in ignore])
        if found[-1] != found[0]:
            raise ValueError(
                f"{path} has {listed(found[-1])} of {listed(OPTIONAL)}, {paths[0]} has "
                f"{listed(found[0])}: all parts must have the same"
            )
    return found[0]


def _check_others(
    path: Path, held: Sequence[str], scores: str, labels: str, ignore: Sequence[str]
) -> None:
    known = dict.fromkeys((scores, labels, "logits", "probs", *OPTIONAL))
    others = [
        name
        for name in held
        if name not in known and not any(fnmatchcase(name, pattern) for pattern in ignore)
    ]
    if others and not is_table(path):
        raise ValueError(
            f"{path} has unknown arrays {listed(others)}; known are "
            f"{listed([*known])}: name the arrays to read {OPTIONS}, "
            f"and those to ignore {IGNORE}"
        )
    for name in others:
        absent = [each for each in (labels, *OPTIONAL) if each not in held]
        bare = re.sub(r"_[0-9]+$", "", name).strip().lower()
        if near := difflib.get_close_matches(bare, [scores, *absent], 1, cutoff=0.8):
            raise ValueError(
                f"{path} has a column {name!r}: rename it if it means {near[0]!r}, or ignore it "
                f"{IGNORE}"
            )
    if others:
        warnings.warn(f"{path}: unknown columns are not read: {listed(others, 5)}", stacklevel=4)
