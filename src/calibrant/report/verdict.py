"""The recommendation of a study, in sentences made from its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from calibrant.metrics import Interval
from calibrant.report.comparison import Combination, Comparison
from calibrant.report.differences import LEVEL, CombinationDifference, Reading
from calibrant.report.formatting import difference_text, name_of, value_text

Certainty = Literal["certain", "likely", "open", "unknown"]
Baseline = Literal["usual", "plain", "first"]


@dataclass(frozen=True)
class Verdict:
    """The best proper score among combinations whose accuracy is not significantly worse.

    Attributes:
        comparison: comparison of all combinations.
        unfinished: number of runs without a result.
        runs: number of all runs; 0 if not known.
        failed: number of runs that failed or diverged, so that waiting will not help.
        line: the recommended one; None if no proper score was measured.
        proper: the score it was chosen by.
        baseline: what it is compared with, perhaps itself; None if there is no other combination.
        kind: kind of the baseline: "usual" is cross entropy with temperature scaling, "plain" with
            another calibrator or none, "first" the first method or optimizer of the study.
        gains: differences to the baseline in the score, accuracy and ECE.
        relative: difference in the score as a part of the baseline's.
        certainty: that its score is better than the baseline's. "certain": at the 5 % level over
            seeds, corrected for all combinations; "likely": uncorrected, or over examples only;
            "open": the interval includes zero; "unknown": there is no interval.
        ties: other combinations of which neither the score nor accuracy is significantly worse.
        unknown: combinations that could not be compared with it.
        simplest: simplest of the combination and the ties within its interval: cross entropy
            first, then without calibrator, then with temperature.
        better: combinations with a better score whose accuracy is significantly worse.
    """

    comparison: Comparison
    unfinished: int = 0
    runs: int = 0
    failed: int = 0
    line: Combination | None = None
    proper: str | None = None
    baseline: Combination | None = None
    kind: Baseline = "usual"
    gains: dict[str, CombinationDifference] = field(default_factory=dict)
    relative: float | None = None
    certainty: Certainty = "unknown"
    ties: tuple[Combination, ...] = ()
    unknown: tuple[Combination, ...] = ()
    simplest: Combination | None = None
    better: tuple[Combination, ...] = ()

    @property
    def headline(self) -> str:
        """The shortest answer to which one to use."""
        if not self.comparison.combinations:
            return "All runs failed" if self._all_failed else "No run has finished yet"
        if self.line is None or self.proper is None:
            return "No recommendation: neither NLL nor Brier score was measured"
        if self.baseline is None:
            return f"Only {self.line} was measured"
        if self.is_clear:
            return f"Use {self.line}"
        if self.certainty == "likely":
            return f"Likely best: {self.line}"
        return f"No clear winner. Lowest {name_of(self.proper)}: {self.line}"

    @property
    def is_clear(self) -> bool:
        """Whether it is certainly better, or is cross entropy and nothing is better."""
        if self.line is None or self.baseline is not self.line:
            return self.certainty == "certain"
        return self.kind != "first" or not (self.ties or self.unknown)

    @property
    def _all_failed(self) -> bool:
        return 0 < self.runs == self.failed

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that give the reasons for the headline."""
        if not self.comparison.combinations:
            if self._all_failed:
                return ("The reasons are below.",)
            found = ["There is nothing to compare yet."]
        elif self.line is None or self.proper is None:
            found = ["A proper score with finite values is needed to choose a method."]
        else:
            found = [*_choice(self, self.line, self.proper), *_gain(self, self.line, self.proper)]
            found += _rest(self, self.line, self.proper)
        if self.unfinished:
            has = "has" if self.unfinished == 1 else "have"
            found.append(f"{self.unfinished} of {self.runs} runs {has} no result.")
        return tuple(found)


def _choice(verdict: Verdict, line: Combination, proper: str) -> list[str]:
    """Sentences on the score, accuracy and ECE of the recommended combination."""
    score, comparison = line.readings[proper], verdict.comparison
    count, all_, several = len(score.runs), len(comparison.seeds), len(comparison.combinations) > 1
    seeds = f"{count} of {all_} seeds" if count < all_ else f"mean of {count} seeds"
    value = f"{value_text(proper, score.interval)} ({'one seed' if all_ == 1 else seeds})"
    first = f"{name_of(proper)} of {line}: {value}"
    if several:
        what = f"combinations of {comparison.axis} and calibrator"
        first += f", the lowest of {len(comparison.combinations)} {what}"
    if verdict.better:
        first += (
            " whose accuracy is not significantly below the highest. "
            f"{_listed(verdict.better)} {'has' if len(verdict.better) == 1 else 'have'} a lower "
            f"{name_of(proper)}, but significantly lower accuracy"
        )
    found = [f"{first}."]
    accuracy, ece = line.readings.get("accuracy"), line.readings.get("ece")
    if accuracy is not None:
        note = _accuracy_note(comparison, accuracy) if several else ""
        found.append(f"Accuracy: {value_text('accuracy', accuracy.interval)}{note}.")
    elif several:
        found.append("Accuracy was not measured: it may be lower than that of others.")
    if ece is not None:
        found.append(f"ECE: {value_text('ece', ece.interval)}.")
    return found


def _accuracy_note(comparison: Comparison, accuracy: Reading) -> str:
    """How an accuracy compares with the highest one, to be appended to its value."""
    if accuracy.mark == "best":
        return ", the highest"
    for line in comparison.combinations:
        highest = line.readings.get("accuracy")
        if highest is not None and highest.mark == "best":
            words = {"equal": "not significantly below", "worse": "significantly below"}
            top = f"the highest, {value_text('accuracy', highest.interval)} of {line}"
            return f", {words.get(accuracy.mark, 'which cannot be compared with')} {top}"
    return ""


def _gain(verdict: Verdict, line: Combination, proper: str) -> list[str]:
    """Sentences on its difference to the baseline, and whether that is significant."""
    baseline, gains, axis = verdict.baseline, verdict.gains, verdict.comparison.axis
    if baseline is None:
        return []
    what = {"usual": "the usual baseline", "plain": "plain cross entropy"}
    kind = what.get(verdict.kind) if axis == "method" else None
    kind = kind or f"the first {axis} of the study"
    if baseline is line:
        return [f"That is {kind}: no other combination is better."]
    if proper not in gains:
        why = "they share no seed, or have no intervals"
        return [f"It cannot be compared with {baseline}, {kind}: {why}."]
    changes = []
    for metric, gap in gains.items():
        relative = verdict.relative if metric == proper else None
        interval = Interval(gap.value, gap.low, gap.high)
        changes.append(
            f"{name_of(metric)} is {difference_text(metric, interval, relative=relative)}"
        )
    return [
        f"Compared with {baseline}, {kind}: {'; '.join(changes)}.",
        _certainty(verdict, name_of(proper), gains[proper]),
    ]


def _certainty(verdict: Verdict, score: str, gap: CombinationDifference) -> str:
    by = f"paired over {gap.seeds} seeds"
    if gap.how == "examples":
        by = "over test examples; another training may differ"
    corrected = f"after correction for {len(verdict.comparison.combinations) - 1} comparisons"
    significant = f"The difference in {score} is significant at the 5 % level ({by})"
    if verdict.certainty == "certain":
        return f"{significant}, also {corrected}."
    if verdict.certainty == "likely":
        still = gap.adjusted < 1 - LEVEL
        return f"{significant}." if still else f"{significant}, but not {corrected}."
    if gap.low > 0:
        return f"In the seeds that both have, its {score} is significantly worse ({by})."
    return f"The difference in {score} is not significant ({by}): it may be chance."


def _rest(verdict: Verdict, line: Combination, proper: str) -> list[str]:
    """Sentences on which others are not significantly worse."""
    found, others = [], len(verdict.comparison.combinations) - 1
    count, score = len(verdict.ties), name_of(proper)
    what = f"{score} or accuracy" if "accuracy" in verdict.comparison.metrics else score
    if count:
        who = "The other one" if others == 1 else f"{count} of {others} others"
        found.append(f"{who} {'is' if count == 1 else 'are'} not significantly worse in {what}.")
        simplest = verdict.simplest
        if simplest is not None and simplest is not line:
            value = value_text(proper, simplest.readings[proper].interval)
            found.append(f"The simplest with a similar {score} is {simplest}: {value}.")
        if len(verdict.comparison.seeds) == 2:
            found.append("With two seeds, only large differences can be significant.")
    elif others > len(verdict.unknown):
        who = "The other one is" if others == 1 else "All others are"
        alone = "" if others == 1 else ", each compared alone"
        found.append(f"{who} significantly worse in {what}{alone}.")
    if verdict.unknown:
        found.append(
            f"No comparison is possible with {_listed(verdict.unknown)}: {score} is not finite in "
            "every seed, no seed is shared, there are no intervals, or the calibrator did not "
            "converge."
        )
    return found


def _listed(lines: Sequence[Combination]) -> str:
    """Join at most three names."""
    names = [str(line) for line in lines[:3]]
    if len(lines) > 3:
        names[2:] = [f"{len(lines) - 2} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
