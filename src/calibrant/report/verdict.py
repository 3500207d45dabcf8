"""What a study says, in words made from its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from calibrant.metrics import Interval
from calibrant.report.comparison import Comparison, Line
from calibrant.report.differences import LEVEL, LineDifference, Reading
from calibrant.report.formatting import name_of, said, said_more

Certainty = Literal["certain", "likely", "open", "unknown"]
Baseline = Literal["usual", "plain", "first"]


@dataclass(frozen=True)
class Verdict:
    """The line with the best proper score among those of which accuracy is not worse.

    Attributes:
        comparison: what all this was found in.
        unfinished: trainings without a result.
        trainings: all of them; 0 if not known.
        ended: trainings that failed or diverged, so that waiting will not help.
        line: the one found; None if no proper score was measured.
        proper: the score it was found by.
        baseline: what it is compared with, perhaps itself; None if there is no other line.
        kind: what the baseline is: "usual" is cross entropy with temperature scaling, "plain" is
            cross entropy otherwise, "first" the first method or optimizer.
        gains: its differences to the baseline, for the score, accuracy and ECE.
        relative: the difference of the score as a part of the baseline's.
        certainty: that it is better than the baseline in the score. "certain" at the level of 5 %
            over seeds, also after the correction for all lines; "likely" before it, or over
            examples, only; "open" if the interval includes zero; "unknown" if there is none.
        ties: other lines of which neither the score nor accuracy is significantly worse.
        unknown: lines that could not be compared with it.
        simplest: of the line and of ties within its interval; cross entropy, then no calibrator,
            come first.
        better: lines with a better score whose accuracy is significantly worse.
    """

    comparison: Comparison
    unfinished: int = 0
    trainings: int = 0
    ended: int = 0
    line: Line | None = None
    proper: str | None = None
    baseline: Line | None = None
    kind: Baseline = "usual"
    gains: dict[str, LineDifference] = field(default_factory=dict)
    relative: float | None = None
    certainty: Certainty = "unknown"
    ties: tuple[Line, ...] = ()
    unknown: tuple[Line, ...] = ()
    simplest: Line | None = None
    better: tuple[Line, ...] = ()

    @property
    def headline(self) -> str:
        """The shortest answer to which one to use."""
        if not self.comparison.lines:
            return "Every training failed" if self._all_failed else "Nothing has finished yet"
        if self.line is None or self.proper is None:
            return "No proper score, no recommendation"
        if self.baseline is None:
            return f"Only {self.line} was measured"
        if self.is_clear:
            return f"Use {self.line}"
        if self.certainty == "likely":
            return f"Probably {self.line}"
        first = "comes first" if self.better else f"has the lowest {name_of(self.proper)}"
        return f"No clear winner; {self.line} {first}"

    @property
    def is_clear(self) -> bool:
        """Whether the advice holds: certainly better, or nothing is better than cross entropy."""
        if self.line is None or self.baseline is not self.line:
            return self.certainty == "certain"
        return self.kind != "first" or not (self.ties or self.unknown)

    @property
    def _all_failed(self) -> bool:
        return 0 < self.trainings == self.ended

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict in words."""
        if not self.comparison.lines:
            found = ["No training has finished: there is nothing to compare yet."]
            if self._all_failed:
                return ("No training has finished: all of them failed, the reasons are below.",)
        elif self.line is None or self.proper is None:
            found = [
                "Neither NLL nor the Brier score was measured with a finite value: no proper score "
                "says which one to use."
            ]
        else:
            found = [*_choice(self, self.line, self.proper), *_gain(self, self.line, self.proper)]
            found += _rest(self, self.line, self.proper)
        if self.unfinished:
            has = "has" if self.unfinished == 1 else "have"
            found.append(f"{self.unfinished} of {self.trainings} trainings {has} no result.")
        return tuple(found)


def _choice(verdict: Verdict, line: Line, proper: str) -> list[str]:
    """Its score, accuracy and ECE."""
    score, count = line.readings[proper], len(verdict.comparison.lines)
    value = f"{said(proper, score.interval)} ({_seeds(score, verdict.comparison)})"
    first = f"{line} has the lowest {name_of(proper)} of {count} combinations, {value}."
    if count == 1:
        first = f"Only {line} was measured: {name_of(proper)} {value}."
    elif verdict.better:
        first = (
            f"{line} has the lowest {name_of(proper)}, {value}, of the combinations whose accuracy "
            f"is not significantly below the highest; {_listed(verdict.better)} "
            f"{'has' if len(verdict.better) == 1 else 'have'} a lower one, but less accuracy."
        )
    parts = []
    accuracy = line.readings.get("accuracy")
    if accuracy is not None:
        parts.append(f"Its accuracy is {said('accuracy', accuracy.interval)}")
        if count > 1:
            parts[0] += _beside_the_highest(verdict.comparison, accuracy)
    if "ece" in line.readings:
        its = "its" if parts else "Its"
        parts.append(f"{its} ECE is {said('ece', line.readings['ece'].interval)}")
    found = [first, f"{'; '.join(parts)}."] if parts else [first]
    if accuracy is None and count > 1:
        found.append("Its accuracy was not measured: it may be worse than that of others.")
    return found


def _beside_the_highest(comparison: Comparison, accuracy: Reading) -> str:
    if accuracy.mark == "best":
        return ", the highest"
    found = [
        (line, line.readings["accuracy"])
        for line in comparison.lines
        if "accuracy" in line.readings
    ]
    highest = [(line, each) for line, each in found if each.mark == "best"]
    if not highest:
        return ""
    name, value = highest[0]
    top = f"the highest, {said('accuracy', value.interval)} of {name}"
    if accuracy.mark == "equal":
        return f", not significantly below {top}"
    if accuracy.mark == "worse":
        return f", significantly below {top}"
    return f" (whether that is below {top}, cannot be told)"


def _gain(verdict: Verdict, line: Line, proper: str) -> list[str]:
    """What it gains over the baseline, and whether that is certain."""
    baseline, gains = verdict.baseline, verdict.gains
    if baseline is None:
        return []
    first = f"the first {verdict.comparison.axis} of the study"
    what = {
        "usual": "the usual baseline",
        "plain": "plain cross entropy (no temperature scaling of it has a value)",
        "first": f"{first} (no plain cross entropy has a value)",
    }[verdict.kind]
    if verdict.comparison.axis != "method":
        what = first
    if baseline is line:
        return [f"That is {what}: no other combination comes before it."]
    if proper not in gains:
        return [
            f"Whether it is better than {baseline}, {what}, cannot be told: they have no seed in "
            "common or no intervals."
        ]
    parts = {proper: verdict.relative}
    changes = [
        f"its {name_of(metric)} is "
        + said_more(metric, Interval(gap.value, gap.low, gap.high), relative=parts.get(metric))
        for metric, gap in gains.items()
    ]
    return [
        f"Against {baseline}, {what}, {'; '.join(changes)}.",
        _certainty(verdict, name_of(proper), gains[proper]),
    ]


def _certainty(verdict: Verdict, score: str, gap: LineDifference) -> str:
    by = f"paired over {gap.seeds} seeds"
    if gap.how == "examples":
        by = "by the intervals over examples alone, so another training may differ"
    corrected = f"a correction for {len(verdict.comparison.lines) - 1} comparisons"
    if verdict.certainty == "certain":
        return f"That its {score} is better is certain at the level of 5 %, {by}, also after " + (
            f"{corrected}."
        )
    if verdict.certainty == "likely":
        but = "" if gap.adjusted < 1 - LEVEL else f", but not after {corrected}"
        return f"That its {score} is better is likely, not certain: the 95 % interval excludes " + (
            f"zero, {by}{but}."
        )
    if gap.low > 0:
        return f"In the seeds that both have, its {score} is significantly worse, {by}."
    return (
        f"The 95 % interval of the difference in {score} includes zero, {by}: the study does not "
        "show that it is better."
    )


def _rest(verdict: Verdict, line: Line, proper: str) -> list[str]:
    """Which others are as good, as far as can be told."""
    found, others = [], len(verdict.comparison.lines) - 1
    count, score = len(verdict.ties), name_of(proper)
    what = f"{score} or accuracy" if "accuracy" in verdict.comparison.metrics else score
    if count:
        who = "The other one" if others == 1 else f"{count} of {others} others"
        first = f"{who} {'is' if count == 1 else 'are'} not significantly worse in {what}; "
        simplest = verdict.simplest
        if simplest is None or simplest is line:
            none = "none of them is" if count > 1 else "it is not"
            found.append(f"{first}{none} both simpler and near the best.")
        else:
            value = said(proper, simplest.readings[proper].interval)
            found.append(f"{first}the simplest near the best is {simplest}, {score} {value}.")
        if len(verdict.comparison.seeds) == 2:
            found.append("Two seeds can hardly show a difference.")
    elif others > len(verdict.unknown):
        all_ = "All others are" if not verdict.unknown else "The others are"
        each = ", each taken alone"
        if others == 1:
            all_, each = "The other one is", ""
        found.append(f"{all_} significantly worse in {what}{each}.")
    if verdict.unknown:
        found.append(
            f"Nothing can be said about {_listed(verdict.unknown)}: no finite {score} in every "
            "seed, no seed in common, or no intervals."
        )
    return found


def _seeds(reading: Reading, comparison: Comparison) -> str:
    count, all_ = len(reading.runs), len(comparison.seeds)
    if count < all_:
        return f"{count} of {all_} seeds"
    return "one seed" if count == 1 else f"mean of {count} seeds"


def _listed(lines: Sequence[Line]) -> str:
    """At most three names."""
    names = [str(line) for line in lines[:3]]
    if len(lines) > 3:
        names[2:] = [f"{len(lines) - 2} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
