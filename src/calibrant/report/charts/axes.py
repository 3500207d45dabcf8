"""The frame of a chart: two scales, lines behind the data, numbers along the sides."""

from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.report.charts.scales import Scale, tick_texts
from calibrant.report.charts.svg import line, text


@dataclass(frozen=True)
class Axes:
    """Where numbers are: x from left to right, y from the bottom upwards."""

    x: Scale
    y: Scale

    def draw(
        self,
        *,
        x_name: str = "",
        y_name: str = "",
        x_ticks: Sequence[float] | None = None,
        y_ticks: Sequence[float] | None = None,
        x_texts: bool = True,
        y_texts: bool = True,
        whole: bool = False,
    ) -> str:
        """Lines, numbers and names; y has its name above the upper left corner.

        Ticks are round numbers unless given; those of x are integers if `whole`.
        """
        about = max(2, round(abs(self.x.end - self.x.start) / 70))
        xs = list(self.x.ticks(about, whole=whole) if x_ticks is None else x_ticks)
        about = max(2, round(abs(self.y.end - self.y.start) / 36))
        ys = list(self.y.ticks(about) if y_ticks is None else y_ticks)
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = [line(left, self.y(each), right, self.y(each), role="grid") for each in ys]
        parts += [line(self.x(each), bottom, self.x(each), top, role="grid") for each in xs]
        parts.append(line(left, bottom, right, bottom, role="axis"))
        parts.append(line(left, bottom, left, top, role="axis"))
        if x_texts:
            parts += [
                text(self.x(each), bottom + 15, words, role="tick", anchor="middle", size=11)
                for each, words in zip(xs, tick_texts(xs), strict=True)
            ]
        if y_texts:
            parts += [
                text(left - 6, self.y(each) + 4, words, role="tick", anchor="end", size=11)
                for each, words in zip(ys, tick_texts(ys), strict=True)
            ]
        if x_name:
            middle = (left + right) / 2
            parts.append(text(middle, bottom + 31, x_name, role="name", anchor="middle"))
        if y_name:
            parts.append(text(max(2, left - 40), top - 8, y_name, role="name"))
        return "".join(parts)
