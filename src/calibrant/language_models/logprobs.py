"""Multiple choice by log-probabilities of tokens: JSON lines of OpenAI's interface, also by vLLM.

A line holds a response (a chat completion, a text completion, an answer of the responses
interface, or a line of a batch), the right option, and perhaps the options and the request.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.array_names import LABELS
from calibrant.files.checks import listed, one_line
from calibrant.files.json_lines import records
from calibrant.language_models.answer_log import MOST_OPTIONS, OPTIONS, TASK, FileAnswers
from calibrant.language_models.responses import Position, positions_of
from calibrant.language_models.sampling import check_untouched

# Rounding of reported log-probabilities: less than this may be left for other tokens.
LEAST_MASS = 1e-6
# Below this mean, the position or the options are probably wrong.
LOW_MASS = 0.5


@dataclass
class Counts:
    """What the remarks of a file are made of."""

    total: int = 0
    unanswered: Counter[str] = field(default_factory=Counter)
    several: int = 0
    missing: int = 0
    missing_labels: int = 0
    mass: float = 0.0
    doubtful: int = 0


def read(
    path: Path, *, options: Sequence[str] | None = None, label: str | None = None
) -> FileAnswers:
    """Read responses with log-probabilities.

    The log-probability of an option is that of its token; tokens that differ in outer space are
    added. An option that was not reported gets the largest value it can have: the smallest that
    was reported, or its share of the remaining mass if that is less.

    Args:
        path: the file. Lines may have a field `task`; else the name of the file is the task.
        options: tokens of the options, such as A, B, C, D, for lines without a field `options`.
        label: field with the right option: its name, or its index from 0 as an integer. Default:
            the only one of labels, label, answer, y, target and y_true.

    Raises:
        ValueError: a line without log-probabilities, options or label, or whose settings of
            sampling changed the log-probabilities.
    """
    found, counts, own = FileAnswers(), Counts(), False
    fields = (label,) if label else (*LABELS, "answer")
    for number, record in records(path):
        counts.total += 1
        try:
            counts.doubtful += check_untouched(record)
            names = _options(record, options)
            own |= OPTIONS in record
            right = _label(record, names, fields)
            position = _answer(record, names, counts)
            if position is None:
                continue
            values = _scores(position, names, right, counts)
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from None
        found.choices.append(values)
        found.labels.append(right)
        found.tasks.append(one_line(record.get(TASK, path.stem)))
        found.lines.append(number)
    if not found.choices:
        why = ", ".join(f"{count:,} {reason}" for reason, count in counts.unanswered.items())
        raise ValueError(f"{path} has no answers: {why or 'it has no lines'}")
    found.names = None if own or options is None else tuple(options)
    found.remarks = _remarks(counts, len(found.choices))
    return found


def _options(record: Mapping[str, Any], given: Sequence[str] | None) -> list[str]:
    held = record.get(OPTIONS, given)
    if held is None:
        raise ValueError(
            "which tokens are the options? give --names A,B,C,D, or a field options in each line"
        )
    if not isinstance(held, list | tuple | dict) or not all(isinstance(e, str) for e in held):
        raise ValueError("options must be a list of tokens, or an object whose keys they are")
    names = [each.strip() for each in held]
    if not 2 <= len(names) <= MOST_OPTIONS or len(set(names)) < len(names) or "" in names:
        raise ValueError(
            f"options must be 2 to {MOST_OPTIONS:,} different tokens, got {listed(names, 5)}"
        )
    return names


def _label(record: Mapping[str, Any], names: Sequence[str], fields: Sequence[str]) -> int:
    held = [name for name in fields if name in record]
    if len(held) != 1:
        raise ValueError(
            f"the right option must be in one of {', '.join(fields)}, and "
            + (f"{', '.join(held)} are there: name it with --labels" if held else "none is there")
        )
    value = record[held[0]]
    if isinstance(value, str) and value.strip() in names:
        return names.index(value.strip())
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return value
    raise ValueError(
        f"{held[0]} must be one of the options {listed(names, 10)}, or its index from 0, got "
        f"{one_line(repr(value), 40)}"
    )


def _answer(record: Mapping[str, Any], names: Sequence[str], counts: Counts) -> Position | None:
    """The position of the answer; None, and counted, if there is none.

    It is the first token if that is an option, else the last token that is one; of a single token
    it is this one in any case.
    """
    body = record.get("response", record)
    if isinstance(body, dict) and isinstance(body.get("body"), dict):
        body = body["body"]
    if not isinstance(body, dict) or record.get("error") or body.get("error"):
        counts.unanswered["failed requests"] += 1
        return None
    positions = positions_of(body)
    matches = [at for at, each in enumerate(positions) if each.token.strip() in names]
    counts.several += len(matches) > 1
    if len(positions) == 1 or 0 in matches:
        position = positions[0]
    elif matches:
        position = positions[matches[-1]]
    else:
        counts.unanswered["without a token that is an option"] += 1
        return None
    if not any(token.strip() in names for token in position.reported):
        counts.unanswered["without an option among the reported tokens"] += 1
        return None
    return position


def _scores(position: Position, names: Sequence[str], right: int, counts: Counts) -> list[float]:
    """Log-probability of each option; unreported ones get the largest value they can have."""
    mass = dict.fromkeys(names, 0.0)
    for token, value in position.reported.items():
        if token.strip() in mass:
            mass[token.strip()] += math.exp(value)
    absent = [name for name in names if not mass[name]]
    counts.missing += len(absent)
    counts.missing_labels += names[right] in absent
    counts.mass += sum(mass.values())
    left = max(1 - sum(map(math.exp, position.reported.values())), LEAST_MASS)
    floor = min(position.limit, math.log(left / max(len(absent), 1)))
    return [math.log(mass[name]) if mass[name] else floor for name in names]


def _remarks(counts: Counts, answered: int) -> list[str]:
    remarks = [
        f"{count:,} of {counts.total:,} lines left out, {reason}"
        for reason, count in counts.unanswered.items()
    ]
    if counts.missing:
        remarks.append(
            f"{counts.missing:,} options of {answered:,} questions, {counts.missing_labels:,} of "
            "them right, are not among the reported tokens and count as the largest probability "
            "they can have: request more top_logprobs"
        )
    if counts.mass < LOW_MASS * answered:
        remarks.append(
            f"the options hold {100 * counts.mass / answered:.0f} % of the probability on average: "
            "are these the tokens, and is this the position, of the answers?"
        )
    if counts.several:
        remarks.append(
            f"{counts.several:,} answers have several tokens that are options: the first token is "
            "the answer if it is one, else the last of them"
        )
    if counts.doubtful:
        remarks.append(
            f"{counts.doubtful:,} lines were sampled with a temperature, top-p or the like, and do "
            "not say if their log-probabilities are those before it: so they are at OpenAI and in "
            "vLLM by default; other servers differ"
        )
    return remarks
