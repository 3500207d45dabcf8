"""The audits of several models side by side: one table, tests of differences, one page."""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from calibrant.extras import need
from calibrant.metrics import METRICS, Difference, Interval, compare_many
from calibrant.metrics.resampling.comparisons import in_one_class_order, same_examples
from calibrant.predictions import Predictions
from calibrant.report.audit import Audit, audit
from calibrant.report.formatting import ends_text, value_with_interval
from calibrant.report.rendering import SavedPage
from calibrant.table_values import Cell, Column, Mark, Table

if TYPE_CHECKING:
    import pandas

# Metrics of the table. Differences are tested for those whose sampling bias does not differ
# between models.
MANY = ("accuracy", "nll", "brier", "debiased_ece", "ece", "overconfidence")
TWO = (
    "nll",
    "binary_brier",
    "roc_auc",
    "calibration_in_the_large",
    "calibration_slope",
    "binary_ece",
    "debiased_binary_ece",
)
TESTED = {
    *("accuracy", "nll", "brier", "debiased_ece"),
    *("binary_brier", "roc_auc", "debiased_binary_ece"),
}
ALPHA = 0.05


@dataclass(frozen=True, repr=False)
class ModelAudits(SavedPage):
    """Audits of several models, and the differences of each to the best.

    Attributes:
        audits: name of each model to its audit.
        paired: whether all have the same examples, so that differences are tested in pairs.
        differences: metric to model to its difference to the model with the best value.
    """

    audits: dict[str, Audit]
    paired: bool
    differences: dict[str, dict[str, Difference]]

    def __repr__(self) -> str:
        said = f": {self.verdict}" if self.verdict else ""
        return f"ModelAudits({self.facts}{said})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics of the table."""
        binary = all(each.summary.classes == 2 for each in self.audits.values())
        known = next(iter(self.audits.values())).metrics
        return TWO if binary else tuple(name for name in MANY if name in known)

    @property
    def facts(self) -> str:
        """Number of models, and whether they share their examples."""
        sizes = sorted({each.summary.examples for each in self.audits.values()})
        n = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        how = "the same" if self.paired else "different"
        tests = "paired" if self.paired else "unpaired"
        return f"{len(self.audits)} models, {n} examples each: {how} examples, {tests} tests"

    def mark(self, metric: str, model: str) -> Mark:
        """How a model compares with the best in a metric."""
        found = self.differences.get(metric)
        if found is None:
            return ""
        if model not in found:
            return "best"
        return "worse" if self._is_worse(metric, model) else "equal"

    def _is_worse(self, metric: str, model: str) -> bool:
        """Whether a model is significantly worse than the best; an infinite value always is."""
        infinite = not math.isfinite(self.audits[model].metrics[metric].value)
        return infinite or self.differences[metric][model].p_value < ALPHA

    @property
    def table(self) -> Table:
        """One row for each model: metrics with intervals, marked against the best."""
        columns = [Column("model"), Column("examples", number=True)]
        for name in self.columns:
            higher = METRICS[name].best == "higher"
            columns.append(Column(METRICS[name].label, number=True, higher_is_better=higher))
        rows = []
        for model, found in self.audits.items():
            cells = [Cell(model), Cell(f"{found.summary.examples:,}")]
            for name in self.columns:
                value = found.metrics[name]
                cells.append(
                    Cell(
                        _shown(value),
                        ends_text(value),
                        self.mark(name, model),
                        f"{value.value:.9g}",
                        _tip(name, self.differences.get(name, {}).get(model)),
                    )
                )
            rows.append(tuple(cells))
        return Table(tuple(columns), tuple(rows), "Models")

    @property
    def verdict(self) -> str:
        """Which model has the lowest log loss and which is best calibrated, with significance."""
        if not self.differences:
            return ""
        said = [
            self._best(metric, words)
            for metric, words in {
                "nll": "has the lowest log loss",
                "debiased_ece": "is the best calibrated",
                "debiased_binary_ece": "is the best calibrated",
            }.items()
            if metric in self.differences and metric in self.columns
        ]
        return "; ".join(said)

    def _best(self, metric: str, words: str) -> str:
        found = self.differences[metric]
        best = next(model for model in self.audits if model not in found)
        worse = [model for model in found if self._is_worse(metric, model)]
        if not worse:
            return f"no significant difference in {METRICS[metric].label}"
        ties = [model for model in found if model not in worse]
        tied = f", not significantly ahead of {', '.join(ties)}" if ties else ""
        return f"{best} {words} ({self.audits[best].metrics[metric].value:.4f}){tied}"

    def with_files(self, files: Mapping[str, str]) -> "ModelAudits":
        """The same audits, which know how the command line names the predictions of each model."""
        outputs = _outputs(files)
        audits = {
            name: replace(each, file=files[name], output=outputs[name])
            for name, each in self.audits.items()
        }
        return replace(self, audits=audits)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `calibrant audit --json` prints them."""
        return {
            "paired": self.paired,
            "verdict": self.verdict,
            "models": {name: each.to_dict() for name, each in self.audits.items()},
            "differences": {
                metric: {name: vars(each) for name, each in found.items()}
                for metric, found in self.differences.items()
            },
        }

    def to_pandas(self) -> "pandas.DataFrame":
        """All metrics: a row for each model, and three columns for each metric."""
        pandas = need("pandas", extra="pandas", what="a data frame")
        rows = {}
        for model, found in self.audits.items():
            row: dict[str, float] = {"examples": found.summary.examples}
            for name, value in found.metrics.items():
                row |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            rows[model] = row
        return pandas.DataFrame.from_dict(rows, orient="index")

    def _repr_html_(self) -> str:
        from calibrant.report.audit_page import models_fragment

        return models_fragment(self)

    def to_html(self) -> str:
        """A self-contained page."""
        from calibrant.report.audit_page import models_page

        return models_page(self)


def audit_models(
    models: Mapping[str, Predictions],
    *,
    paired: bool | None = None,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    bins: int = 15,
    progress: Callable[[], None] | None = None,
    **options: Any,
) -> ModelAudits:
    """Audit several models, and test their differences to the best of each metric.

    Args:
        models: name to predictions.
        paired: whether rows are the same examples; by default, if the labels are equal.
        resamples: number of bootstrap resamples; 0 gives values without intervals and tests.
        seed: seed of the bootstrap.
        level: confidence level of the intervals.
        bins: number of bins of binned metrics and of the reliability diagrams.
        progress: called once for each resample.
        options: further options of `audit`.
    """
    if not models:
        raise ValueError("need at least one model to audit, got none")
    classes = {name: each.classes for name, each in models.items()}
    if len(set(classes.values())) > 1:
        raise ValueError(f"models differ in their number of classes: {classes}")
    models = in_one_class_order(models)
    if paired is None:
        paired = all(same_examples(*pair) for pair in combinations(models.values(), 2))
    common: dict[str, Any] = {"resamples": resamples, "seed": seed, "level": level}
    audits = {
        name: audit(each, name=name, bins=bins, progress=progress, **common, **options)
        for name, each in models.items()
    }
    held = {name: each.predictions for name, each in audits.items()}
    differences = {}
    if resamples and len(models) > 1:
        for metric in next(iter(audits.values())).metrics.keys() & TESTED:
            entry = METRICS[metric]
            best = min(audits, key=lambda name: entry.loss(audits[name].metrics[metric].value))
            others = {name: each for name, each in held.items() if name != best}
            differences[metric] = compare_many(
                entry.with_bins(bins), held[best], others, paired=paired, **common
            )
    return ModelAudits(audits, paired, differences)


def _shown(value: Interval) -> str:
    return "inf" if value.value == math.inf else value_with_interval(value).split(" [")[0]


def _outputs(files: Mapping[str, str]) -> dict[str, str]:
    """A file for the calibrator of each model, all different.

    >>> _outputs({"a": "'x y.npz' --probs p", "b": "z/b.npz"})
    {'a': "'x y.json'", 'b': 'b.json'}
    >>> _outputs({"a/t.npz": "a/t.npz", "b/t.npz": "b/t.npz"})
    {'a/t.npz': 'a-t.npz.json', 'b/t.npz': 'b-t.npz.json'}
    """
    paths = {name: PurePath(shlex.split(file)[0]) for name, file in files.items()}
    stems = {name: path.stem for name, path in paths.items()}
    if len(set(stems.values())) < len(stems):
        stems = {
            name: "-".join(path.relative_to(path.anchor).parts) for name, path in paths.items()
        }
    return {name: shlex.quote(f"{stem}.json") for name, stem in stems.items()}


def _tip(metric: str, difference: Difference | None) -> str:
    meaning = METRICS[metric].meaning
    return meaning if difference is None else f"{meaning}\ndifference to the best: {difference}"
