"""Find the arrays of predictions in a file, by name."""

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path

from calibrant import files
from calibrant.advice import InputError
from calibrant.checks import Kind
from calibrant.files.checks import check_present, is_text, listed

# Read if present.
OPTIONAL = ("weights", "groups")
# Names of archives, which calibrant writes; `correct` belongs to `confidence`.
SCORES: tuple[Kind, ...] = ("logits", "probs", "confidence")
# Columns of tables that are understood without options: of labels, and the names before the number
# of a class, or of the score of class 1 alone.
LABELS = ("labels", "label", "y", "target", "y_true")
STEMS: dict[str, Kind] = dict.fromkeys(
    ("p", "prob", "probs", "proba", "probas", "probability", "probabilities"), "probs"
)
STEMS |= dict.fromkeys(("z", "logit", "logits"), "logits")
# These may be either.
UNCLEAR = ("score", "scores", "class", "pred", "output")
WORDS = {"probs": "probabilities", "logits": "logits", "confidence": "confidence"}
_NUMBERED = re.compile(r"(.*?)[_.\- ]?(0|[1-9][0-9]{0,6})")
_START = re.compile(r"[^_.\- ]+[_.\- ]")

Given = str | Sequence[str] | None


@dataclass(frozen=True)
class Requested:
    """What to read, as the user named it: arrays, columns, or patterns of columns.

    `by` are columns of slices, whose values may be `missing` or not.
    """

    logits: Given = None
    probs: Given = None
    confidence: str | None = None
    correct: str | None = None
    labels: str | None = None
    ignore: Sequence[str] = ()
    need_labels: bool = True
    by: Sequence[str] = ()
    missing: bool = False

    @property
    def kind(self) -> Kind | None:
        """The kind of the scores that are named; None if none are."""
        named = [kind for kind in SCORES if getattr(self, kind)]
        if len(named) > 1:
            raise InputError(
                f"several kinds of scores are named, {' and '.join(named)}",
                f"pass one of {', '.join(f'{kind}=...' for kind in SCORES)}",
                f"give one of {', '.join(f'--{kind}' for kind in SCORES)}",
            )
        return named[0] if named else None


@dataclass(frozen=True)
class Names:
    """Names of the arrays to read.

    Attributes:
        kind: of the scores.
        scores: one array, or one column for each class.
        labels: name of the labels, or of the correctness of predictions of kind `confidence`.
        optional: which of weights and groups are read.
        classes: names of the classes, if the names of the columns say them.
    """

    kind: Kind
    scores: tuple[str, ...]
    labels: str
    optional: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None


def find_names(paths: Sequence[Path], requested: Requested) -> Names:
    """Find scores, labels, weights and groups in the parts of a file.

    Values never decide the kind of scores. A damaged name must not silently drop an array, so
    archives may hold known names only. Other columns of tables give a warning, or an error if they
    resemble a known name.
    """
    first, held = paths[0], files.columns(paths[0])
    check_present(first, requested.by, held)
    labels = LABELS if requested.labels is None else (requested.labels,)
    for name in requested.by:
        if name in (*SCORES, *labels, "correct", "weights"):
            raise ValueError(f"{first}: cannot slice by {name!r}, which has another use")
    found = _scores(first, [name for name in held if name not in requested.by], requested)
    for name in requested.ignore:
        if name in (*found.scores, found.labels):
            raise ValueError(f"cannot ignore {name!r}: it is read")
    each = []
    for path in paths:
        own = held if path == first else files.columns(path)
        check_present(path, requested.by, own)
        _check_others(path, own, found, requested)
        each.append(tuple(n for n in OPTIONAL if n in own and n not in requested.ignore))
        if each[-1] != each[0]:
            raise ValueError(
                f"{path} has {listed(each[-1])} of {listed(OPTIONAL)}, {first} has "
                f"{listed(each[0])}: all parts must have the same"
            )
    return replace(found, optional=each[0])


def holds(path: Path, given: Given) -> bool:
    """Whether a file has arrays or columns of these names or patterns."""
    held = files.columns(path)
    known = {*held, *files.names(path)}
    parts = _parts(given, known)
    return all(part in known or any(fnmatchcase(each, part) for each in held) for part in parts)


def _scores(path: Path, held: Sequence[str], requested: Requested) -> Names:
    """The scores that are named, or those that a file has."""
    kind = requested.kind
    if kind == "confidence":
        chosen = select_columns(path, held, requested.confidence)
        return Names(kind, chosen, requested.correct or "correct")
    if requested.correct:
        raise InputError(
            "correctness needs the confidence as well",
            "pass confidence=... and correct=...",
            "give --confidence and --correct",
        )
    if kind is not None:
        labels = requested.labels or _labels(path, held, requested)
        chosen = select_columns(path, held, getattr(requested, kind), apart=(labels, *OPTIONAL))
        if len(chosen) == 1 and (chosen[0] == "confidence" or labels == "correct"):
            warnings.warn(
                f"{path}: {chosen[0]!r} is read as the score of class 1; name it as confidence "
                "if it is that of the predicted class",
                stacklevel=5,
            )
        return Names(kind, chosen, labels, classes=class_names_of(chosen))
    arrays = files.names(path)
    known = [each for each in SCORES if each in arrays]
    if known == ["confidence"] and "correct" in arrays and requested.labels is None:
        return Names("confidence", ("confidence",), "correct")
    known = [each for each in known if each != "confidence"]
    labels = requested.labels or _labels(path, held, requested)
    if len(known) > 1:
        raise _unnamed(f"{path} has both 'logits' and 'probs'")
    enough = labels in held or not requested.need_labels
    if known and enough:
        return Names(known[0], (known[0],), labels)
    if files.is_table(path) and enough and (found := _guessed(path, held, labels)):
        return found
    problem = f"{path} has {listed(arrays)}; need {labels!r} and one of 'logits' or 'probs'"
    starts = _starts(held) if files.is_table(path) else {}
    for start, kind in starts.items():
        if len(starts) == 1 and enough and (found := _of_classes(path, start, kind, labels, held)):
            return found
        raise _unnamed(f"{problem}, or names", f"{kind}='{start}*'", f"--{kind} '{start}*'")
    raise _unnamed(f"{problem}, or names")


def _unnamed(problem: str, python: str = "", command: str = "") -> InputError:
    return InputError(
        problem,
        f"name the arrays to read ({python or 'logits=, probs=, labels='}, or confidence=, "
        "correct=)",
        f"name the arrays to read ({command or '--logits, --probs, --labels'}, or --confidence, "
        "--correct)",
    )


def _labels(path: Path, held: Sequence[str], requested: Requested) -> str:
    """The labels that a file has: of tables, the only column with a usual name."""
    found = [name for name in LABELS if name in held] if files.is_table(path) else []
    found = found[:1] if "labels" in found else found
    if len(found) > 1:
        raise InputError(
            f"{path} has the columns {listed(found)}; one holds the labels",
            "name it (labels=...)",
            "name it (--labels)",
        )
    return found[0] if found else "labels"


def _guessed(path: Path, held: Sequence[str], labels: str) -> Names | None:
    """Columns of a table whose names say what they are, such as p0, p1, ... or prob."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for column in held:
        match = _NUMBERED.fullmatch(column)
        stem = (match[1] if match else column).lower()
        if stem in STEMS or stem in UNCLEAR:
            groups.setdefault(stem, []).append((int(match[2]) if match else -1, column))
    if not groups:
        return None
    stem, members = next(iter(groups.items()))
    shown = listed([column for _, column in members], 4)
    if len(groups) > 1 or stem in UNCLEAR:
        what = "probabilities or logits" if len(groups) == 1 else "scores"
        rest = [column for other in groups.values() for _, column in other]
        raise _unnamed(f"{path} has {listed(rest, 6)}, which may be {what}")
    numbers = sorted(number for number, _ in members)
    if numbers not in ([-1], [*range(len(members))]):
        raise _unnamed(f"{path} has {shown}, which are not numbered from 0 without gaps")
    chosen = tuple(column for _, column in sorted(members))
    kind = STEMS[stem]
    said = chosen[0] if len(chosen) == 1 else f"{chosen[0]} to {chosen[-1]}"
    also = f", {labels} as labels" if labels in held else ""
    warnings.warn(f"{path}: read {said} as {WORDS[kind]}{also}", stacklevel=5)
    return Names(kind, chosen, labels)


def _starts(held: Sequence[str]) -> dict[str, Kind]:
    """Starts such as `prob_` that several columns have, which then may end in names of classes."""
    matches = [_START.match(column) for column in held]
    counts = Counter(match[0] for match in matches if match)
    kinds = {start: STEMS.get(start[:-1].lower()) for start, times in counts.items() if times > 1}
    return {start: kind for start, kind in kinds.items() if kind is not None}


def _of_classes(
    path: Path, start: str, kind: Kind, labels: str, held: Sequence[str]
) -> Names | None:
    """Columns of a table with this start, if they end in the names of classes that labels have.

    Without labels the ends are the names of the classes.
    """
    chosen = tuple(column for column in held if column.startswith(start))
    ends = tuple(column.removeprefix(start) for column in chosen)
    said = f"{path}: read {listed(chosen, 4)} as {WORDS[kind]}"
    if labels in held:
        values = files.read(path, [labels], text=[labels])[labels]
        if not is_text(values) or set(ends) != set(values.tolist()):
            return None
        said += f", {labels} as labels"
    warnings.warn(said, stacklevel=5)
    return Names(kind, chosen, labels, classes=ends)


def _parts(given: Given, known: set[str]) -> list[str]:
    """Names and patterns: a list, or a string with commas."""
    parts = [given] if isinstance(given, str) else list(given or ())
    split = ([part] if part in known else part.split(",") for part in parts)
    return [name.strip() for each in split for name in each if name.strip()]


def select_columns(
    path: Path, held: Sequence[str], given: Given, apart: Sequence[str] = ()
) -> tuple[str, ...]:
    """Columns by name, list or pattern; a pattern gives them by number, else as in the file.

    Args:
        path: the file, for messages.
        held: all columns.
        given: names of arrays or columns, with commas between, or patterns such as `p*`.
        apart: columns that a pattern leaves out.
    """
    known = {*held, *files.names(path)}
    chosen: list[str] = []
    for part in _parts(given, known):
        matching = [part]
        if part not in known:
            matching = [each for each in held if fnmatchcase(each, part) and each not in apart]
            matching = _by_number(matching) or matching
        if not matching:
            raise ValueError(f"{path} has no {part!r}; it holds {listed(sorted(known))}")
        chosen += matching
    if len(set(chosen)) < len(chosen):
        again = next(each for at, each in enumerate(chosen) if each in chosen[:at])
        raise ValueError(f"{path}: column {again!r} is named twice; name each class once")
    return tuple(chosen)


def _by_number(columns: Sequence[str]) -> list[str] | None:
    """Columns in the order of their numbers: p2 before p10; None if they are not numbered."""
    matches = [_NUMBERED.fullmatch(column) for column in columns]
    numbered = [(int(match[2]), match[0]) for match in matches if match]
    if len(numbered) < len(columns) or len({match[1] for match in matches if match}) != 1:
        return None
    return [column for _, column in sorted(numbered)]


def class_names_of(columns: Sequence[str]) -> tuple[str, ...] | None:
    """Names of the classes, from those of their columns without the common start.

    Numbers from 0 are no names.

    >>> class_names_of(["p_cat", "p_dog"]), class_names_of(["p1", "p2"]), class_names_of(["p0"])
    (('cat', 'dog'), ('1', '2'), None)
    """
    if len(columns) < 2:
        return None
    if _by_number(columns) is not None:
        ends = tuple(match[2] for each in columns if (match := _NUMBERED.fullmatch(each)))
        return None if ends == tuple(map(str, range(len(ends)))) else ends
    # The first and the last in order differ at least as early as any two.
    pairs = zip(min(columns), max(columns), strict=False)
    same = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = re.sub(r"[^_.\- ]*$", "", same)
    return tuple(column[len(start) :] for column in columns)


def _check_others(path: Path, held: Sequence[str], found: Names, requested: Requested) -> None:
    read = (*found.scores, found.labels)
    used = set(requested.by) | {
        column
        for name in read
        if name in held or len(found.scores) == 1
        for column in _columns(path, held, name)
    }
    known = dict.fromkeys((*read, "logits", "probs", "confidence", "correct", "labels", *OPTIONAL))
    left = [column for column in held if column not in used]
    others = [
        name
        for name in (files.array_names(left) if files.is_table(path) else left)
        if name not in known and not any(fnmatchcase(name, each) for each in requested.ignore)
    ]
    if "label_names" in others and not files.is_table(path):
        raise InputError(
            f"{path} holds several labels for each example",
            "read it with MultiLabel.load",
            "add --multi-label",
        )
    if others and not files.is_table(path):
        raise InputError(
            f"{path} has unknown arrays {listed(others)}; known are {listed([*known])}",
            "name the arrays to read (logits=, probs=, labels=) or to ignore (ignore=[...])",
            "name the arrays to read (--logits, --probs, --labels) or to ignore (--ignore NAME, "
            "which may be a pattern)",
        )
    near_to = [*(found.scores if len(found.scores) == 1 else ())]
    near_to += [each for each in (found.labels, *OPTIONAL) if each not in held]
    for name in others:
        bare = re.sub(r"_[0-9]+$", "", name).strip().lower()
        if near := difflib.get_close_matches(bare, near_to, 1, cutoff=0.8):
            raise InputError(
                f"{path} has a column {name!r}: rename it if it means {near[0]!r}",
                f"or ignore it (ignore=[{name!r}])",
                f"or ignore it (--ignore {name})",
            )
    if others:
        warnings.warn(f"{path}: unknown columns are not read: {listed(others, 5)}", stacklevel=5)


def _columns(path: Path, held: Sequence[str], name: str) -> list[str]:
    """The columns of an array; just its name if the file lacks it, which reading will refuse."""
    pattern = re.compile(re.escape(name) + r"_(0|[1-9][0-9]{0,6})")
    numbered = [column for column in held if pattern.fullmatch(column)]
    return numbered if numbered and files.is_table(path) else [name]
