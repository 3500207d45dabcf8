"""Sample logs of lm-evaluation-harness: `samples_<task>_<date>.jsonl`, from `--log_samples`.

A line has the log-likelihood of each option in `filtered_resps`, the prompts and options in
`arguments`, and the right option in `target`, as text. Neither says whether a target such as "2" is
an index or an option; `acc`, the harness's own scoring, tells, and proves that labels are right.
"""

import math
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

from calibrant.files.checks import one_line
from calibrant.language_models.answer_log import FileAnswers
from calibrant.language_models.harness_samples import NORMALIZED, Sample, read_samples

LENGTHS: dict[str, Callable[[str], int]] = {
    "characters": len,
    "bytes": lambda text: len(text.encode("utf-8", "surrogatepass")),
}
_FILE = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.-]+")
_INDEX = re.compile(r"\[?\s*(\d{1,6})\s*\]?")
# One answer is right always in the same place, if so many lines say so.
SAME_PLACE = 20


def read(path: Path, *, normalize_by: str = "none") -> FileAnswers:
    """Read a sample log of a multiple-choice task.

    Args:
        path: the file; its name says the task, or a field `task` of a line, as `calibrant apply`
            writes it.
        normalize_by: what log-likelihoods are divided by, so that long options are not at a
            disadvantage: "none" (the metric `acc`), "characters" (`acc_norm`) or "bytes"
            (`acc_bytes`); "mutual-info" subtracts those without the question (`acc_mutual_info`).

    Raises:
        ValueError: generated answers, several right options, repeated questions, a target that is
            no option, or labels that disagree with the scores in the log.
    """
    if normalize_by not in NORMALIZED:
        raise ValueError(
            f"normalize_by must be one of {', '.join(NORMALIZED)}, got {normalize_by!r}"
        )
    named = _FILE.fullmatch(path.stem)
    by_task = read_samples(path, named[1] if named else path.stem)
    if not by_task:
        raise ValueError(f"{path} has no lines; expected a sample log of lm-evaluation-harness")
    rows: list[tuple[int, list[float], int, str]] = []
    remarks = []
    for task, samples in by_task.items():
        if all(len(each.values) < 2 for each in samples):
            raise ValueError(
                f"{path}: questions have one option only: this task is no multiple choice"
            )
        labels = _labels(path, samples)
        values = _normalized(path, samples, labels, normalize_by)
        numbers = [each.line for each in samples]
        rows += zip(numbers, values, labels, [task] * len(samples), strict=True)
        if len(set(labels)) == 1 and len(labels) >= SAME_PLACE:
            where = f" of {task}" if len(by_task) > 1 else ""
            remarks.append(
                f"the right answer{where} is always option {labels[0]}: calibrators with "
                "parameters for each class would learn that; use temperature"
            )
    # Calibrated probabilities are written in the order of the lines.
    rows.sort(key=lambda row: row[0])
    return FileAnswers(
        choices=[row[1] for row in rows],
        labels=[row[2] for row in rows],
        tasks=[row[3] for row in rows],
        lines=[row[0] for row in rows],
        remarks=remarks,
    )


def check_distinct(paths: Sequence[Path], answers: Sequence[FileAnswers]) -> None:
    """Refuse two logs of the same task, such as an old one and a new one."""
    seen: dict[str, Path] = {}
    for path, part in zip(paths, answers, strict=True):
        for task in dict.fromkeys(part.tasks):
            if task in seen:
                raise ValueError(
                    f"{seen[task]} and {path} are logs of the same task {task!r}: give one of them"
                )
            seen[task] = path


def _normalized(
    path: Path, samples: Sequence[Sample], labels: Sequence[int], by: str
) -> list[list[float]]:
    """Log-likelihoods divided by lengths, so that they explain the metric in the log.

    The harness does not count the delimiter before the options, usually a space, as theirs. It is
    the space that all options begin with; if the log disagrees, it is empty.
    """
    spaces = [_space(text) for sample in samples for text in sample.options]
    # The first and the last in order differ at least as early as any two.
    pairs = zip(min(spaces), max(spaces), strict=False)
    start = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    metric, wrong = NORMALIZED[by], samples[0]
    for delimiter in dict.fromkeys((start, "") if by in LENGTHS else ("",)):
        values = [_divided(path, sample, by, delimiter) for sample in samples]
        rows = zip(samples, values, labels, strict=True)
        disagree = (row[0] for row in rows if not _agrees(row[0], row[2], row[1], metric))
        found = next(disagree, None)
        if found is None:
            return values
        wrong = found
    raise ValueError(
        f"{path}: line {wrong.line}: {metric} is {wrong.scored[metric]:g}, which log-likelihoods "
        f"normalized by {by} do not explain: use another normalization"
    )


def _space(text: str) -> str:
    return "".join(takewhile(str.isspace, text))


def _divided(path: Path, sample: Sample, by: str, delimiter: str) -> list[float]:
    where = f"{path}: line {sample.line}"
    if by == "none":
        return sample.values
    if by == "mutual-info":
        if sample.unconditional is None or not all(map(math.isfinite, sample.unconditional)):
            raise ValueError(f"{where} has no log-likelihoods without the question")
        return [a - b for a, b in zip(sample.values, sample.unconditional, strict=True)]
    if sample.in_context:
        raise ValueError(f"{where} has its options in the prompts, which have no length: use none")
    sizes = [LENGTHS[by](each.removeprefix(delimiter)) for each in sample.options]
    if 0 in sizes:
        raise ValueError(f"{where}: option {sizes.index(0)} is empty and has no length: use none")
    return [value / size for value, size in zip(sample.values, sizes, strict=True)]


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _labels(path: Path, samples: Sequence[Sample]) -> list[int]:
    """The right options by the one meaning of the targets that agrees with the scores."""
    meanings = {
        name: [meaning(sample) for sample in samples]
        for name, meaning in (("scores", _by_scores), ("text", _by_text), ("index", _by_index))
    }
    right = []
    for labels in meanings.values():
        known = [each for each in labels if each is not None]
        if len(known) == len(labels) and all(map(_agrees, samples, known)):
            right.append(known)
    if len(right) > 1 and any(each != right[0] for each in right):
        raise ValueError(
            f"{path}: targets may be indices or options, and there is no acc to tell: log it"
        )
    if right:
        return right[0]
    raise _refused(path, samples, meanings)


def _by_scores(sample: Sample) -> int | None:
    """Of two options in the prompts, where the target is the text after them."""
    if not sample.in_context or len(sample.values) != 2 or "acc" not in sample.scored:
        return None
    best = _best(sample.values)
    return best if sample.scored["acc"] == 1 else 1 - best


def _by_text(sample: Sample) -> int | None:
    if sample.in_context:
        return None
    for at, option in enumerate(sample.options):
        if option.endswith(sample.target) and not option[: -len(sample.target) or None].strip():
            return at
    return None


def _by_index(sample: Sample) -> int | None:
    found = None if sample.in_context else _INDEX.fullmatch(sample.target)
    at = int(found[1]) if found else -1
    return at if 0 <= at < len(sample.values) else None


def _agrees(
    sample: Sample, label: int, values: Sequence[float] | None = None, metric: str = "acc"
) -> bool:
    """Whether the harness scored the most likely option as it would with this label."""
    right = _best(sample.values if values is None else values) == label
    return sample.scored.get(metric, float(right)) == right


def _refused(
    path: Path, samples: Sequence[Sample], meanings: dict[str, list[int | None]]
) -> ValueError:
    """Why no meaning of the targets fits: the first line without a label, or with a wrong one."""
    name = min(meanings, key=lambda name: meanings[name].count(None))
    for sample, label in zip(samples, meanings[name], strict=True):
        where, target = f"{path}: line {sample.line}", one_line(repr(sample.target), 60)
        if label is None and sample.target.startswith("["):
            return ValueError(f"{where}: target {target} has several right options, not one")
        if label is None and sample.in_context:
            return ValueError(f"{where}: options are in the prompts, and the right one is not said")
        if label is None:
            return ValueError(
                f"{where}: target {target} is none of the {len(sample.values)} options"
            )
        if not _agrees(sample, label):
            return ValueError(
                f"{where}: acc is {sample.scored['acc']:g}, but the most likely option is "
                f"{_best(sample.values)} and the target {target}: the task has a scoring of its own"
            )
    raise AssertionError("some meaning fits")
