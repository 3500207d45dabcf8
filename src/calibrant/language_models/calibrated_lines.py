"""Write calibrated probabilities into a copy of the lines that they were computed from."""

import json
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from calibrant.files.atomic import replacing
from calibrant.files.json_lines import lines, parsed
from calibrant.language_models.answer_log import AnswerLog

FIELD = "calibrated_probs"


def write(path: Path, log: AnswerLog, log_probs: Tensor) -> None:
    """Copy the lines of a log, with the probabilities of the options in a field of their own.

    All else stays as it is, and so do lines that hold no answer; atomic.
    """
    rows = _options(log, log_probs)
    with replacing(path) as handle:
        for file, answers in zip(log.files, log.answers, strict=True):
            answered = set(answers.lines)
            for number, line in lines(file):
                text = line.rstrip()
                if number in answered:
                    if FIELD in parsed(file, number, line):
                        raise ValueError(f"{file}: line {number} has a field {FIELD!r} already")
                    text = b'%b, "%b": %b}' % (
                        text[:-1].rstrip(),
                        FIELD.encode(),
                        json.dumps(next(rows)).encode(),
                    )
                handle.write(text + b"\n")


def _options(log: AnswerLog, log_probs: Tensor) -> Iterator[list[float]]:
    """The probabilities of the options that each question has."""
    for count, row in zip(log.counts.tolist(), log_probs.exp().tolist(), strict=True):
        yield row[:count]
