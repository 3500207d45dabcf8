"""Lines of sample logs of lm-evaluation-harness: questions with the scores of their options."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.files.checks import listed, one_line
from calibrant.files.json_lines import records
from calibrant.language_models.answer_log import MOST_OPTIONS, TASK

# What log-likelihoods are divided by, and the metric of the harness that does the same.
NORMALIZED = {
    "none": "acc",
    "characters": "acc_norm",
    "bytes": "acc_bytes",
    "mutual-info": "acc_mutual_info",
}


@dataclass(frozen=True)
class Sample:
    """One line: a question with its options.

    Attributes:
        line: number of the line.
        id: `doc_id`, or the line.
        values: log-likelihood of each option.
        unconditional: the same without the question, if the task measures mutual information.
        options: text of each option, with the delimiter before it.
        in_context: whether the options stand in the prompts, before one and the same text.
        target: the right option, as the log has it.
        scored: whether the harness counts the answer as correct, by metric.
    """

    line: int
    id: object
    values: list[float]
    unconditional: list[float] | None
    options: list[str]
    in_context: bool
    target: str
    scored: dict[str, float]


def read_samples(path: Path, task: str) -> dict[str, list[Sample]]:
    """The questions of each task, which is `task` for lines without a field `task`."""
    by_task: dict[str, dict[str, dict[object, Sample]]] = {}
    for number, record in records(path):
        try:
            sample = _sample(number, record)
            by_filter = by_task.setdefault(one_line(record.get(TASK, task)), {})
            name = str(record.get("filter", "none"))
            if sample.id in by_filter.setdefault(name, {}):
                first = by_filter[name][sample.id].line
                raise ValueError(f"doc_id {sample.id} is in line {first} already")
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from None
        by_filter[name][sample.id] = sample
    return {name: _of_one_filter(path, each) for name, each in by_task.items()}


def _of_one_filter(path: Path, by_filter: dict[str, dict[object, Sample]]) -> list[Sample]:
    """The questions of a task; of several filters those of `none`, which changes nothing."""
    if len(by_filter) > 1 and "none" not in by_filter:
        raise ValueError(
            f"{path}: questions are scored by several filters, {listed([*by_filter], 5)}: log one"
        )
    found = by_filter.get("none") or next(iter(by_filter.values()))
    return list(found.values())


def _sample(number: int, record: dict[str, Any]) -> Sample:
    pairs = _arguments(record.get("arguments"))
    if any(not isinstance(text, str) for _, text in pairs):
        raise ValueError(
            "the answer is generated text: this task is no multiple choice; for free answers see "
            "--format confidence"
        )
    values = _values(record.get("filtered_resps"))
    if len(values) != len(pairs):
        raise ValueError(f"{len(values)} log-likelihoods of {len(pairs)} options")
    scored = {
        name: float(record[name])
        for name in NORMALIZED.values()
        if isinstance(record.get(name), int | float) and 0 <= record[name] <= 1
    }
    half, unconditional = len(pairs) // 2, None
    if "acc_mutual_info" in scored and len(pairs) % 2 == 0 and all(not p for p, _ in pairs[half:]):
        pairs, values, unconditional = pairs[:half], values[:half], values[half:]
    if len(pairs) > MOST_OPTIONS:
        raise ValueError(f"{len(pairs):,} options, at most {MOST_OPTIONS:,} are allowed")
    if all(value == -math.inf for value in values):
        raise ValueError("every option has the log-likelihood -inf")
    if "target" not in record:
        raise ValueError(f"no 'target'; the line has {listed([*record], 10)}")
    identity = record.get("doc_id", number)
    options = [text for _, text in pairs]
    return Sample(
        number,
        identity if isinstance(identity, int | str) else number,
        values,
        unconditional,
        options,
        len(options) > 1 and len(set(options)) == 1 and len({p for p, _ in pairs}) == len(pairs),
        str(record["target"]),
        scored,
    )


def _arguments(given: Any) -> list[tuple[Any, Any]]:
    """Prompt and continuation of each request: lists, or objects of newer versions."""
    items = list(given.values()) if isinstance(given, dict) else given
    if not isinstance(items, list) or not items:
        raise ValueError("no 'arguments'; expected a sample log of lm-evaluation-harness")
    pairs = []
    for item in items:
        pair = list(item.values()) if isinstance(item, dict) else item
        if not isinstance(pair, list) or len(pair) < 2:
            raise ValueError("'arguments' must be pairs of a prompt and an option")
        pairs.append((pair[0], pair[1]))
    return pairs


def _values(given: Any) -> list[float]:
    """Log-likelihoods: the first of each pair, which newer versions write as text."""
    if not isinstance(given, list) or not given:
        raise ValueError("no 'filtered_resps'; expected a sample log of lm-evaluation-harness")
    values = []
    for at, pair in enumerate(given):
        first = pair[0] if isinstance(pair, list) and pair else None
        try:
            value = math.nan if isinstance(first, bool) else float(first)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if math.isnan(value) or value == math.inf:
            raise ValueError(
                f"'filtered_resps' has no log-likelihood of option {at}, but "
                f"{one_line(repr(first), 40)}"
            )
        values.append(value)
    return values
