"""Answers of a language model as logs hold them: of one file, and of several together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.array_names import Names
from calibrant.checks import Kind
from calibrant.choices import option_counts, padded_logits
from calibrant.files.checks import Limits, check_size, listed
from calibrant.prediction_files import PredictionArrays
from calibrant.predictions import Predictions, from_arrays

# More options would be no multiple choice; they would also make arrays of one width too large.
MOST_OPTIONS = 1000
# Columns that every log has to slice by.
TASK, OPTIONS = "task", "options"


@dataclass
class FileAnswers:
    """What a reader collects from one file: a row for each question.

    Attributes:
        choices: log-likelihoods of the options; empty for free answers.
        confidence: of free answers.
        labels: index of the right option; of free answers 1 if the answer was correct.
        tasks: name of the task of each question.
        lines: line of each question.
        names: names of the options, if they are the same everywhere.
        remarks: what the reader should know.
    """

    choices: list[list[float]] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    names: tuple[str, ...] | None = None
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class AnswerLog:
    """Answers of one language model, from one or several files.

    Attributes:
        path: as given; errors name it.
        files: the files that were read.
        answers: what each of them holds.
        max_expansion: largest ratio of the padded array to the stored bytes.
        width: least number of columns of the array, such as a calibrator has classes.
    """

    path: str
    files: tuple[Path, ...]
    answers: tuple[FileAnswers, ...]
    max_expansion: float = 100.0
    width: int = 0

    @property
    def kind(self) -> Kind:
        """What is known: logits of the options, or only the confidence of the answer."""
        return "logits" if self.answers[0].choices else "confidence"

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of options of each question, (n,); 0 of free answers."""
        if self.kind == "confidence":
            return np.zeros(len(self.labels), np.int64)
        return option_counts([each for part in self.answers for each in part.choices])

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """(n, k) logits, -inf where a question has fewer options; (n,) of free answers."""
        if self.kind == "confidence":
            return np.array([each for part in self.answers for each in part.confidence])
        width = max(self.width, int(self.counts.max()))
        declared = 8 * len(self.counts) * width
        stored = sum(path.stat().st_size for path in self.files)
        limits = Limits(64 * 2**30, self.max_expansion)
        check_size(self.files[0], "the array of options", declared, stored, limits)
        logits = padded_logits([each for part in self.answers for each in part.choices])
        missing = ((0, 0), (0, width - logits.shape[1]))
        return np.pad(logits, missing, constant_values=-np.inf)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Index of the right option; of free answers 1 if the answer was correct, (n,)."""
        return np.array([each for part in self.answers for each in part.labels], np.int64)

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, in the order of the files."""
        return list(dict.fromkeys(name for part in self.answers for name in part.tasks))

    @cached_property
    def slices(self) -> dict[str, NDArray[Any]]:
        """Columns to slice by: the task, and the number of options if there are any."""
        found = {TASK: np.array([name for part in self.answers for name in part.tasks])}
        return found if self.kind == "confidence" else found | {OPTIONS: self.counts}

    @property
    def chance(self) -> float:
        """Accuracy of guessing: the mean of 1 / number of options; NaN of free answers."""
        return float((1 / self.counts).mean()) if self.kind == "logits" else float("nan")

    @property
    def facts(self) -> str:
        """Number of tasks and options, and the accuracy of guessing."""
        number = len(self.tasks)
        tasks = f"{number} task{'s' * (number > 1)}"
        if self.kind == "confidence":
            return f"{tasks}, free answers"
        low, high = int(self.counts.min()), int(self.counts.max())
        options = f"{low}" if low == high else f"{low} to {high}"
        return f"{tasks}, {options} options, accuracy of guessing {self.chance:.4f}"

    @property
    def predictions(self) -> Predictions:
        """The answers as predictions: class i is option i of each question."""
        return from_arrays(self.arrays())

    def arrays(self, by: Sequence[str] = ()) -> PredictionArrays:
        """The answers as the arrays of a file, with the columns of slices that `by` names."""
        for name in by:
            if name not in self.slices:
                raise ValueError(
                    f"{self.path}: no column {name!r} to slice by; a log has "
                    f"{listed([*self.slices])}"
                )
        labels = "correct" if self.kind == "confidence" else "labels"
        names = {part.names for part in self.answers}
        return PredictionArrays(
            self.path,
            self.files,
            Names(self.kind, (str(self.kind),), labels),
            self.scores,
            self.labels,
            {},
            names.pop() if len(names) == 1 else None,
            slices={name: self.slices[name] for name in by},
        )


def check_same_tasks(logs: Sequence[AnswerLog]) -> None:
    """Refuse to compare models that answered different tasks."""
    first = logs[0]
    for other in logs[1:]:
        if set(other.tasks) != set(first.tasks):
            held = " and ".join(f"{listed(log.tasks, 3)} in {log.path}" for log in (first, other))
            raise ValueError(
                f"models are compared on the same tasks, got {held}; for tasks of one model add "
                "--by task, or --pool"
            )
