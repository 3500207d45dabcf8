"""Logs of language models as predictions: options of multiple choice, and free answers."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from calibrant import files
from calibrant.language_models import free_answers, lm_eval, logprobs
from calibrant.language_models.answer_log import AnswerLog, FileAnswers, check_same_tasks
from calibrant.setting_errors import did_you_mean

__all__ = ["FORMATS", "AnswerLog", "check_same_tasks", "read"]

# Readers of one file; their keyword arguments are the options of the format.
FORMATS: dict[str, Callable[..., FileAnswers]] = {
    "lm-eval": lm_eval.read,
    "openai": logprobs.read,
    "confidence": free_answers.read,
}


def read(
    path: str | Path | Sequence[str | Path],
    format: str,
    *,
    max_expansion: float = 100.0,
    **options: Any,
) -> AnswerLog:
    """Read the answers of one language model from JSON lines.

    Args:
        path: a file, a pattern such as `samples_*.jsonl`, or a list of them: tasks of one model.
        format: `lm-eval`, sample logs of lm-evaluation-harness; `openai`, chat or text completions
            with logprobs, as vLLM writes them, too; `confidence`, free answers.
        max_expansion: largest ratio of the array in memory to the stored bytes.
        options: of the format; see `lm_eval.read`, `logprobs.read` and `free_answers.read`.

    Raises:
        ValueError: a line cannot be read, or says that sampling changed its log-probabilities.
    """
    if format not in FORMATS:
        raise ValueError(f"no format {format!r}; {did_you_mean(format, FORMATS)}")
    given = [path] if isinstance(path, str | Path) else list(path)
    parts = [part for each in given for part in files.expand(each)]
    answers = tuple(map(partial(FORMATS[format], **options), parts))
    if format == "lm-eval":
        lm_eval.check_distinct(parts, answers)
    for part, each in zip(parts, answers, strict=True):
        for remark in each.remarks:
            warnings.warn(f"{part}: {remark}", stacklevel=2)
    return AnswerLog(str(given[0]), tuple(parts), answers, max_expansion)
