"""Lines and bands through many points, of which only those are kept that can be seen."""

import math
from collections.abc import Sequence

from calibrant.report.charts.axes import Axes
from calibrant.report.charts.svg import element, rounded

# Points of a curve; more could not be told apart at its size.
POINTS = 150
Numbers = Sequence[float]


def thin(values: Numbers, most: int = POINTS) -> list[int]:
    """Places of at most `most` values, both ends, all extremes of short stretches among them."""
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    stretches = (most - 2) // 2
    for at in range(stretches):
        part = range(at * count // stretches, (at + 1) * count // stretches)
        real = [place for place in part if math.isfinite(values[place])]
        if real:
            kept |= {min(real, key=lambda i: values[i]), max(real, key=lambda i: values[i])}
        else:
            kept.add(part[0])
    return sorted(kept)


def curve(axes: Axes, x: Numbers, y: Numbers, *, role: str, most: int = POINTS) -> str:
    """A line through the points; it stops where a number is missing, a lone point is a dot."""
    stretches: list[list[tuple[float, float]]] = [[]]
    for at in thin(y, most):
        if math.isfinite(x[at]) and math.isfinite(y[at]):
            stretches[-1].append((axes.x(x[at]), axes.y(y[at])))
        elif stretches[-1]:
            stretches.append([])
    long = [each for each in stretches if len(each) > 1]
    parts = [
        element("circle", cx=each[0][0], cy=each[0][1], r=2.5, class_=role.replace("line", "dot"))
        for each in stretches
        if len(each) == 1
    ]
    if long:
        path = "".join(f"M{_joined(each)}" for each in long)
        parts.append(element("path", d=path, class_=role, fill="none"))
    return "".join(parts)


def band(axes: Axes, x: Numbers, low: Numbers, high: Numbers, *, role: str) -> str:
    """The area between two curves, wherever both have a number."""
    places = sorted({*thin(low), *thin(high)})
    stretches: list[list[int]] = [[]]
    for at in places:
        if all(map(math.isfinite, (x[at], low[at], high[at]))):
            stretches[-1].append(at)
        elif stretches[-1]:
            stretches.append([])
    areas = []
    for each in stretches:
        if len(each) > 1:
            upper = [(axes.x(x[at]), axes.y(high[at])) for at in each]
            lower = [(axes.x(x[at]), axes.y(low[at])) for at in reversed(each)]
            areas.append(f"M{_joined(upper + lower)}Z")
    return element("path", d="".join(areas), class_=role) if areas else ""


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{rounded(x)},{rounded(y)}" for x, y in points)
