"""How the eigenvalues of a curvature are spread."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from calibrant.curvature.spectrum import Density
from calibrant.losses.settings import positive
from calibrant.report.figures import style as look

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# Points at which a curve is taken.
POINTS = 1501
# Widths in a panel: of all eigenvalues, and of those about zero, where few places are known.
ALL, CLOSE = 150, 30
# Powers of ten that a panel covers at most.
DEEPEST = 12
# Negative eigenvalues are shown once more if they reach less far than this part of the largest.
SMALL = 0.3


def spectrum_figure(
    density: Density, *, width: float | None = None, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw the density of the eigenvalues on a logarithmic scale, negative ones in their colour.

    Most eigenvalues of a network are nearly zero and a few stand far out on the right; the dashed
    line is the largest, which is the sharpness. Every eigenvalue is drawn as a normal curve, so
    what lies within a width of zero cannot be told from it and is grey. Where there are negative
    eigenvalues and they are small, a second panel shows what is about zero, with a finer width.

    Args:
        density: result of `curvature.spectral_density`.
        width: standard deviation of the normal curves of the first panel; a 150th of the range
            of the eigenvalues unless given.
    """
    top, low = float(density.values.max()), float(density.values.min())
    own = (top - low) / ALL or 0.01 * abs(top) or 1.0 if width is None else width
    positive("width", own)
    panels = [(low - 5 * own, top + 5 * own, own)]
    if -SMALL * top < low < -1e-6 * top:
        panels.append((1.5 * low, -1.5 * low, -3 * low / CLOSE))
    figure, grid = look.new_row(6.8 if len(panels) == 1 else 9.4, 4.4, len(panels))
    for axes, (left, right, wide) in zip(grid, panels, strict=True):
        handles = _draw(axes, density, torch.linspace(left, right, POINTS).double(), wide)
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel("eigenvalue")
    line = grid[0].axvline(top, color=look.INK, linewidth=1.15, linestyle=look.DASHES)
    handles["largest"] = line
    grid[0].set_ylabel("density")
    facts = f"largest {top:.4g}    smallest {low:.4g}    width {own:.2g}"
    look.write_title(grid[0], title, facts)
    if len(panels) > 1:
        look.write_title(grid[1], None, f"about zero    width {panels[1][2]:.2g}")
    look.legend_below(figure, handles.items(), columns=4)
    return figure


def _draw(
    axes: "matplotlib.axes.Axes", density: Density, grid: torch.Tensor, width: float
) -> dict[str, Any]:
    """Curves of the eigenvalues below, about and above zero, by name and share of all."""
    values, weights = density.values, density.weights
    parts = {
        "below zero": (values < -width, look.OVER),
        "within a width of zero": (values.abs() <= width, look.SOFT),
        "above zero": (values > width, look.UNDER),
    }
    drawn: dict[str, Any] = {}
    highest: list[float] = []
    for name, (chosen, hue) in parts.items():
        share = float(weights[chosen].sum())
        if share > 0:
            part = replace(density, values=values[chosen], weights=weights[chosen])
            curve = part.at(grid, width).numpy()
            axes.fill_between(grid, curve, 1e-300, color=hue, alpha=0.3, linewidth=0)
            (drawn[f"{name}: {100 * share:.3g} %"],) = axes.plot(grid, curve, color=hue)
            highest.append(float(curve.max()))
    # As deep as the outermost eigenvalues of this panel need.
    ends = values[(values >= grid[0]) & (values <= grid[-1])].aminmax()
    least = float(density.at(torch.stack([*ends]), width).min()) / 30
    axes.set(yscale="log", xlim=(float(grid[0]), float(grid[-1])))
    axes.set_ylim(max(least, max(highest) * 10.0**-DEEPEST), 3 * max(highest))
    return drawn
