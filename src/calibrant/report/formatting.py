"""Numbers and names as text, with as many digits as their intervals carry."""

import math

from calibrant.metrics import METRICS, Interval
from calibrant.metrics.registry import UNLISTED

# Digits after the point where there is no interval to say how many, and the most in any case.
DIGITS, MOST = 4, 6
# Shown in percent within sentences.
PERCENT = ("accuracy", "overconfidence", "ece", "classwise_ece")
NAMES = {metric.name: metric.label for metric in (*METRICS.values(), *UNLISTED)}


def digits(low: float, high: float) -> int:
    """Digits after the point: two of half the width of an interval.

    Examples:
        >>> digits(1.23, 1.31), digits(0.0112, 0.0114), digits(20.0, 90.0)
        (3, 5, 0)
    """
    half = (high - low) / 2
    if not math.isfinite(half) or half <= 0:
        return DIGITS
    return min(max(1 - math.floor(math.log10(half)), 0), MOST)


def number(value: float, places: int) -> str:
    """A number with so many digits after the point; a dash if it is none.

    Examples:
        >>> number(0.12345, 3), number(-0.0001, 2), number(float("nan"), 2)
        ('0.123', '0.00', '-')
    """
    if not math.isfinite(value):
        return "-"
    # Adding zero turns the minus zero of a small negative number into zero.
    return f"{round(value, places) + 0.0:.{places}f}"


def ends_text(interval: Interval) -> str:
    """The interval in brackets; empty if there is none."""
    if not math.isfinite(interval.low + interval.high):
        return ""
    places = digits(interval.low, interval.high)
    return f"[{number(interval.low, places)}, {number(interval.high, places)}]"


def value_with_interval(interval: Interval) -> str:
    """A value with its interval, as tables show it."""
    value = number(interval.value, digits(interval.low, interval.high))
    return f"{value} {ends_text(interval)}".strip()


def value_text(metric: str, interval: Interval) -> str:
    """A value with its interval, as sentences say it."""
    if metric not in PERCENT:
        return value_with_interval(interval)
    scaled = _scaled(interval)
    value = number(scaled.value, digits(scaled.low, scaled.high))
    return f"{value} % {ends_text(scaled)}".strip()


def difference_text(metric: str, change: Interval, *, relative: float | None = None) -> str:
    """A difference with its interval in words, and as a part of something if that is given.

    Examples:
        >>> difference_text("nll", Interval(-0.1, -0.15, -0.05), relative=-0.08)
        '0.100 (8.0 %) lower [-0.150, -0.050]'
        >>> difference_text("accuracy", Interval(0.012, -0.01, 0.034))
        '1.2 points higher [-1.0, +3.4]'
        >>> difference_text("nll", Interval(-0.11, -0.22, 0.003))
        '0.110 lower [-0.220, +0.003]'
        >>> difference_text("nll", Interval(0.0001, -0.02, 0.0202))
        'about the same [-0.020, +0.020]'
        >>> difference_text("nll", Interval(0.0, 0.0, 0.0))
        'the same'
    """
    percent = metric in PERCENT
    scaled = _scaled(change) if percent else change
    places = digits(scaled.low, scaled.high)
    # An end that is rounded to zero would hide whether the interval includes it.
    while places < MOST and any(e and not round(e, places) for e in (scaled.low, scaled.high)):
        places += 1
    ends = ", ".join(
        ("+" if round(end, places) > 0 else "") + number(end, places)
        for end in (scaled.low, scaled.high)
    )
    size = number(abs(scaled.value), places)
    if not float(size):
        return "the same" if scaled.low == scaled.high else f"about the same [{ends}]"
    unit = (" point" if size == "1" else " points") if percent else ""
    part = "" if relative is None else f" ({number(100 * abs(relative), 1)} %)"
    return f"{size}{unit}{part} {'higher' if scaled.value > 0 else 'lower'} [{ends}]"


def name_of(metric: str) -> str:
    """A metric in a sentence."""
    return NAMES.get(metric, metric)


def class_name(name: str) -> str:
    """A class in a sentence; one that is only numbered is said to be a class."""
    return f"class {name}" if name.isdigit() else name


def shorten(name: str, limit: int) -> str:
    """Cut a long name in its middle, since both ends tell names apart.

    Examples:
        >>> shorten("cross_entropy", 8)
        'cros…opy'
    """
    if len(name) <= limit:
        return name
    tail = (limit - 1) // 2
    return f"{name[: limit - 1 - tail]}…{name[len(name) - tail :]}"


def _scaled(interval: Interval) -> Interval:
    return Interval(100 * interval.value, 100 * interval.low, 100 * interval.high)
