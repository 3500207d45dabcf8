"""Which arrays of a file are predictions: by name, never by value, and none is lost unseen."""

import difflib
import re
import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from calibrant.checks import Kind
from calibrant.files import is_table
from calibrant.files.checks import listed

# Read wherever a file has them; every other array has to be named.
OPTIONAL = ("weights", "groups")
IGNORE = "(ignore=[...] in Python; --ignore NAME, which may be a pattern, on the command line)"
OPTIONS = "(logits=, probs=, labels= in Python; --logits, --probs, --labels on the command line)"


def which_scores(
    path: Path, held: Sequence[str], logits: str | None, probs: str | None, labels: str
) -> tuple[Kind, str]:
    """Decide which array of a file holds the scores, and what they are."""
    if logits and probs:
        raise ValueError("pass logits=... or probs=..., not both")
    if logits or probs:
        return ("logits", logits) if logits else ("probs", str(probs))
    both = "logits" in held and "probs" in held
    if both or labels not in held or not {"logits", "probs"} & set(held):
        what = (
            "holds both 'logits' and 'probs': say which one to read"
            if both
            else f"has {listed(held)}; need {labels!r} and one of 'logits' or 'probs', "
            "or say which names to read"
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
    """Which of weights and groups the parts have, after all their other names were checked.

    One flipped bit in a name would drop an array without a word. So archives may hold known names
    only. Tables often have more columns: those are noted, and refused where they look like
    a known name.
    """
    for name in ignore:
        if name in (scores, labels):
            raise ValueError(f"cannot ignore {name!r}: it is to be read")
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
            f"{path} holds {listed(others)}, which would not be read; known are "
            f"{listed([*known])}: say which names to read {OPTIONS}, "
            f"and which to leave out {IGNORE}"
        )
    for name in others:
        absent = [each for each in (labels, *OPTIONAL) if each not in held]
        bare = re.sub(r"_[0-9]+$", "", name).strip().lower()
        if near := difflib.get_close_matches(bare, [scores, *absent], 1, cutoff=0.8):
            raise ValueError(
                f"{path} has a column {name!r}: rename it if it means {near[0]!r}, or leave it out "
                f"{IGNORE}"
            )
    if others:
        warnings.warn(f"{path}: columns that are not read: {listed(others, 5)}", stacklevel=4)
