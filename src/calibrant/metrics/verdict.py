"""The verdict of a summary: one or two sentences from all its evidence."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from calibrant.metrics.class_bias import ClassBias
from calibrant.metrics.hypothesis_tests import TestResult
from calibrant.metrics.resampling.comparisons import holm
from calibrant.metrics.resampling.intervals import Interval

# Fewer examples are too few for a verdict.
FEW = 30
ALPHA = 0.05
# Classes that are named at most.
NAMED = 3


State = Literal["calibrated", "miscalibrated", "unclear"]


class Judgement(NamedTuple):
    """A verdict in words, and which of three states it means.

    "calibrated" is no evidence of miscalibration; "unclear" is weak evidence, or too few examples.
    """

    state: State
    text: str


def judge(
    examples: int,
    metrics: Mapping[str, Interval],
    tests: Mapping[str, TestResult],
    classes: Sequence[ClassBias],
) -> Judgement:
    """Whether the predictions are calibrated, and if not, in which direction and by how much.

    For two classes it speaks of the probability of the positive class, else of the confidence and
    of single classes. If neither is significantly off, the tests decide.
    """
    if examples < FEW:
        return Judgement("unclear", f"{examples} examples are too few for a verdict")
    found = _positive(metrics, classes) if len(classes) == 2 else _confidence(metrics, classes)
    if found:
        return Judgement("miscalibrated", "; ".join(found))
    return _by_tests(examples, tests, len(classes))


def _positive(metrics: Mapping[str, Interval], classes: Sequence[ClassBias]) -> list[str]:
    """What mean probability and slope say about the positive class."""
    positive, found = classes[1], []
    gap, slope = metrics["calibration_in_the_large"], metrics["calibration_slope"]
    if gap.low > 0 or gap.high < 0:
        ratio = positive.mean_probability / positive.frequency if positive.frequency else math.inf
        times = f", {ratio:.2g} times as high" if math.isfinite(ratio) and ratio >= 1.5 else ""
        found.append(
            f"{'over' if gap.low > 0 else 'under'}-predicts {class_label(positive.name)}: mean "
            f"probability {percent(positive.mean_probability)}, base rate "
            f"{percent(positive.frequency)}{times}"
        )
    if slope.high < 1 or slope.low > 1:
        kind = "too extreme" if slope.high < 1 else "not extreme enough"
        found.append(f"probabilities are {kind}: calibration slope {slope.value:.2f}")
    return found


def _confidence(metrics: Mapping[str, Interval], classes: Sequence[ClassBias]) -> list[str]:
    """What mean confidence, and mean probabilities of the classes, say."""
    found, excess = [], metrics["overconfidence"]
    points = f"{100 * abs(excess.value):.1f} points"
    if excess.low > 0:
        found.append(f"over-confident: confidence is {points} above accuracy on average")
    elif excess.high < 0:
        found.append(f"under-confident: confidence is {points} below accuracy on average")
    off = sorted((each for each in classes if each.p_value < ALPHA), key=lambda c: -abs(c.error))
    named = [f"{class_label(c.name)} {100 * c.error:+.1f} points" for c in off[:NAMED]]
    if named:
        more = f" and {len(off) - NAMED} more" if len(off) > NAMED else ""
        found.append(f"mean probability differs from frequency: {', '.join(named)}{more}")
    return found


def _by_tests(examples: int, tests: Mapping[str, TestResult], classes: int) -> Judgement:
    """What the tests say where means are not significantly off."""
    corrected = holm([test.p_value for test in tests.values()])
    low = {name: test for name, test in tests.items() if test.p_value < ALPHA}
    said = ", ".join(f"{name} {test}" for name, test in low.items())
    if any(p_value < ALPHA for p_value in corrected):
        level = "probability" if classes == 2 else "level of confidence"
        text = f"calibrated on average, but not at every {level} ({said})"
        return Judgement("miscalibrated", text)
    if low:
        few = "one" if len(low) == 1 else len(low)
        text = f"weak evidence of miscalibration in {few} of {len(tests)} tests ({said})"
        return Judgement("unclear", text)
    return Judgement("calibrated", f"no miscalibration detected with {examples:,} examples")


def percent(value: float) -> str:
    """A fraction in percent, with three significant digits below one percent.

    >>> percent(0.0612), percent(0.000123), percent(0.5)
    ('6.1 %', '0.0123 %', '50.0 %')
    """
    return f"{100 * value:.1f} %" if value >= 0.01 or value == 0 else f"{100 * value:.3g} %"


def class_label(name: str, what: str = "class") -> str:
    """A class in a sentence; one that is only numbered is called a class.

    >>> class_label("1"), class_label("cat"), class_label("1", "label")
    ('class 1', 'cat', 'label 1')
    """
    return f"{what} {name}" if name.isdigit() else name
