"""Write calibrated probabilities into a copy of the lines that they were computed from."""

import json
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from calibrant.files.atomic import replacing
from calibrant.files.json_lines import lines, parsed
from calibrant.language_models.answer_log import TASK, AnswerLog

FIELD = "calibrated_probs"


def write(path: Path, log: AnswerLog, log_probs: Tensor) -> None:
    """Copy the lines of a log, with the probabilities of the options in a field of their own.

    The task, which may be the name of the file, is added to lines without one. All else stays as
    it is, and so do lines that hold no answer; atomic.
    """
    rows = _options(log, log_probs)
    with replacing(path) as handle:
        for file, answers in zip(log.files, log.answers, strict=True):
            tasks = dict(zip(answers.lines, answers.tasks, strict=True))
            for number, line in lines(file):
                text = line.rstrip()
                if number in tasks:
                    held = parsed(file, number, line)
                    if FIELD in held:
                        raise ValueError(f"{file}: line {number} has a field {FIELD!r} already")
                    added = {} if TASK in held else {TASK: tasks[number]}
                    more = json.dumps(added | {FIELD: next(rows)})
                    text = text[:-1].rstrip() + b", " + more[1:].encode()
                handle.write(text + b"\n")


def _options(log: AnswerLog, log_probs: Tensor) -> Iterator[list[float]]:
    """The probabilities of the options that each question has."""
    for count, row in zip(log.counts.tolist(), log_probs.exp().tolist(), strict=True):
        yield row[:count]
