"""Free answers with a confidence: stated by the model, or the share of samples that agree."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant.checks import FLAGS
from calibrant.files.checks import listed, one_line
from calibrant.files.json_lines import records
from calibrant.language_models.answer_log import TASK, FileAnswers

SCALES = {"unit": 1.0, "percent": 100.0}
SAMPLES, ANSWER = "samples", "answer"


def read(
    path: Path, *, confidence: str | None = None, correct: str | None = None, scale: str = "unit"
) -> FileAnswers:
    """Read free answers: lines with `confidence` and `correct`, or with `samples` and `answer`.

    The confidence of `samples`, several answers to one question, is the share of the most frequent
    one, the first of those that tie. It is correct if it equals `answer`; outer space does not
    count. Instead of `answer` a line may say `correct`, of the most frequent one.

    Args:
        path: the file. Lines may have a field `task`; else the name of the file is the task.
        confidence: field with the confidence, a number or text such as "85%"; default: confidence.
        correct: field that says if the answer was correct, a boolean, 0 or 1; default: correct.
        scale: "unit" if 1 is certain, "percent" if 100 is.

    Raises:
        ValueError: a line without these fields, or a confidence out of range.
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    found = FileAnswers()
    for number, record in records(path):
        try:
            if SAMPLES in record and confidence is None:
                value, right = _sampled(record, correct or "correct")
            else:
                value = _confidence(_field(record, confidence or "confidence"), scale)
                right = _flag(_field(record, correct or "correct"))
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from None
        found.confidence.append(value)
        found.labels.append(right)
        found.tasks.append(one_line(record.get(TASK, path.stem)))
        found.lines.append(number)
    if not found.confidence:
        raise ValueError(f"{path} has no lines; expected free answers with their confidence")
    return found


def _field(record: Mapping[str, Any], name: str) -> Any:
    if name not in record:
        raise ValueError(f"no {name!r}; the line has {listed([*record], 10)}")
    return record[name]


def _confidence(value: Any, scale: str) -> float:
    """A confidence as a probability; the scale of a number is never guessed."""
    percent = isinstance(value, str) and value.strip().endswith("%")
    text = value.strip().removesuffix("%").strip() if isinstance(value, str) else value
    try:
        # Python also reads 1_000 and digits of other scripts.
        plain = not isinstance(text, str) or (text.isascii() and "_" not in text)
        number = float(text) if plain and not isinstance(text, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    most = 100.0 if percent else SCALES[scale]
    if not 0 <= number <= most:
        hint = "; if 100 is certain, add --scale percent" if 1 < number <= 100 else ""
        raise ValueError(
            f"a confidence must be a number from 0 to {most:g}, or text such as '85%', got "
            f"{one_line(repr(value), 40)}{hint}"
        )
    return number / most


def _flag(value: Any) -> int:
    known = FLAGS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(known, int | float) or known not in (0, 1):
        raise ValueError(f"correctness must be a boolean, 0 or 1, got {one_line(repr(value), 40)}")
    return int(known)


def _sampled(record: Mapping[str, Any], correct: str) -> tuple[float, int]:
    """The share of the most frequent answer, and whether it is correct."""
    held = record[SAMPLES]
    if not isinstance(held, list) or len(held) < 2:
        raise ValueError(f"{SAMPLES!r} must be a list of 2 or more answers to the same question")
    answers = [_text(each) for each in held]
    best, count = Counter(answers).most_common(1)[0]
    if ANSWER in record:
        return count / len(answers), int(best == _text(record[ANSWER]))
    return count / len(answers), _flag(_field(record, correct))


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise ValueError(f"an answer must be text or a number, got {one_line(repr(value), 40)}")
    return str(value).strip()
