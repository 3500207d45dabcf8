"""What to do after an audit: a calibrator to fit, and its gain on held-out folds."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from calibrant import metrics
from calibrant.metrics import METRICS, Difference
from calibrant.metrics.verdict import State
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import without_warnings

# Simplest first; a later one must be significantly better than those before it.
TWO = ("temperature", "platt", "beta")
MANY = ("temperature", "structured_vector")
# Examples and scores that are used at most; with more classes, only the first candidate is fitted.
MOST, SCORES, CLASSES = 20_000, 1 << 22, 200
FOLDS, RESAMPLES = 5, 400
# Smallest relative gain in NLL for which a calibrator is recommended.
LEAST = 0.002
# File of the calibrator, and how errors of fits begin.
OUTPUT, CANNOT = "cal.json", "cannot fit: "


@dataclass(frozen=True)
class NextStep:
    """Advice after an audit.

    Attributes:
        advice: what to do, in words, if no calibrator is recommended.
        calibrator: name of the recommended one; empty if there is none.
        line: the command, or the line of Python, that fits it.
        before: metrics as they are, on the examples of the cross-validation.
        after: the same metrics, each example calibrated by a fit to the other folds.
        gain: paired difference in NLL, after minus before.
        examples: number of examples of the cross-validation.
        subsampled: whether these are a random part.
    """

    advice: str
    calibrator: str = ""
    line: str = ""
    before: dict[str, float] | None = None
    after: dict[str, float] | None = None
    gain: Difference | None = None
    examples: int = 0
    subsampled: bool = False

    @property
    def expected(self) -> str:
        """What the calibrator changes on examples it was not fitted to; empty without one."""
        if self.before is None or self.after is None:
            return ""
        changes = [
            f"{METRICS[name].label} {value:.4f} -> {self.after[name]:.4f}"
            for name, value in self.before.items()
        ]
        part = f"a random {self.examples:,} of the" if self.subsampled else f"{self.examples:,}"
        how = f"{FOLDS}-fold cross-validation on {part} examples"
        return f"lower held-out NLL; {', '.join(changes)} ({how})"

    def __str__(self) -> str:
        wrap = partial(textwrap.fill, width=78, subsequent_indent="  ", break_on_hyphens=False)
        if not self.calibrator:
            return wrap(f"next step: {self.advice}")
        # The command stays in one line, to be copied.
        return f"next step: {self.line}\n{wrap(f'expected: {self.expected}')}"


def next_step(
    predictions: Predictions,
    state: State,
    *,
    bins: int = 15,
    file: str = "",
    output: str = OUTPUT,
    seed: int = 0,
) -> NextStep:
    """Find the calibrator to fit, if the verdict is that predictions are miscalibrated.

    A calibrator is recommended if its fit converged and its held-out NLL is significantly lower
    (paired bootstrap, 95 %), by at least 0.2 %. `file` is how the command line names the
    predictions, `output` the file of the calibrator.
    """
    if state == "calibrated":
        return NextStep("no repair needed")
    if state == "unclear":
        return NextStep("collect more examples before you recalibrate")
    if predictions.top_label_only:
        return NextStep("calibrators need the probabilities of all classes: audit a file with them")
    part, tried = _part(predictions, seed), []
    failed: dict[str, list[str]] = {}
    best, name = part, ""
    for candidate in _candidates(predictions):
        held = _held_out(candidate, part, seed)
        if isinstance(held, str):
            failed.setdefault(held, []).append(candidate)
            continue
        tried.append(candidate)
        if _is_better(held, best, seed):
            best, name = held, candidate
    if not name:
        return NextStep(_no_gain(tried, failed, file, output))
    return NextStep(
        advice="fit a calibrator",
        calibrator=name,
        line=_line(name, file, output),
        before=_measured(part, name, bins),
        after=_measured(best, name, bins),
        gain=metrics.compare(metrics.nll, best, part, resamples=RESAMPLES, seed=seed),
        examples=len(part),
        subsampled=len(part) < len(predictions),
    )


def _candidates(predictions: Predictions) -> tuple[str, ...]:
    if predictions.classes == 2:
        return TWO
    return MANY if predictions.classes <= CLASSES else MANY[:1]


def _part(predictions: Predictions, seed: int) -> Predictions:
    """All examples, or a random part of many."""
    most = min(MOST, max(SCORES // predictions.classes, 100))
    if len(predictions) <= most:
        return predictions
    at = np.random.default_rng(seed).choice(len(predictions), most, replace=False)
    return predictions.take(np.sort(at))


def _held_out(name: str, predictions: Predictions, seed: int) -> Predictions | str:
    """Each example calibrated by a fit to the other folds; a reason if a fit did not succeed."""
    from calibrant.calibrators import CALIBRATORS
    from calibrant.calibrators.selection import fold_of

    kind = CALIBRATORS[name]
    with without_warnings():
        try:
            whole = kind.fit(predictions)
            if whole.origin is not None and not whole.origin.converged:
                return whole.origin.remark
        except ValueError as error:
            return str(error)
        try:
            fold = fold_of(predictions, folds=FOLDS, seed=seed)
            mapped = predictions.logits.double().clone()
            for number in range(FOLDS):
                out = np.flatnonzero(fold == number)
                fitted = kind.fit(predictions.take(fold != number))
                mapped[out] = predictions.take(out).map(fitted).logits.double()
        except ValueError as error:
            return f"{error}, in cross-validation"
    return predictions.map(lambda _: mapped)


def _is_better(held: Predictions, best: Predictions, seed: int) -> bool:
    """Whether the NLL is significantly lower, and by more than the least gain."""
    if metrics.nll(held) >= (1 - LEAST) * metrics.nll(best):
        return False
    return metrics.compare(metrics.nll, held, best, resamples=RESAMPLES, seed=seed).high < 0


def _measured(predictions: Predictions, calibrator: str, bins: int) -> dict[str, float]:
    """NLL and calibration error; accuracy as well if the calibrator can change it."""
    from calibrant.calibrators import CALIBRATORS

    names = ["nll", "binary_ece" if predictions.classes == 2 else "ece"]
    names += [] if CALIBRATORS[calibrator].keeps_argmax else ["accuracy"]
    return {name: METRICS[name].with_bins(bins)(predictions) for name in names}


def _line(calibrator: str, file: str, output: str) -> str:
    if file:
        return f"calibrant fit {file} --calibrator {calibrator} -o {output}"
    from calibrant.calibrators import CALIBRATORS

    return f"calibrant.calibrators.{CALIBRATORS[calibrator].__name__}.fit(predictions)"


def _no_gain(
    tried: Sequence[str], failed: Mapping[str, Sequence[str]], file: str, output: str
) -> str:
    """Why no calibrator is recommended: each reason once, with its calibrators."""
    if not tried and all(reason.startswith(CANNOT) for reason in failed):
        reasons = "; ".join(reason.removeprefix(CANNOT) for reason in failed)
        return f"no calibrator can be fitted: {reasons}"
    found = [f"no significant gain in held-out NLL from {_joined(tried, 'or')}"] if tried else []
    found += [
        f"not recommended: {_joined(names, 'and')}: {reason}" for reason, names in failed.items()
    ]
    how = f"calibrant fit {file} -o {output}" if file else "calibrant.calibrators.select"
    return f"{'; '.join(found)}. Compare all calibrators with {how}, or collect more examples"


def _joined(names: Sequence[str], word: str) -> str:
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
