"""Where in an image a network is unsure, and where it is wrong."""

from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.checks import as_tensor
from calibrant.predictions import Predictions
from calibrant.report.panels import BAR, INK, OVER, SOFT, legend_below, new_figure, shorten

if TYPE_CHECKING:
    import matplotlib.figure

RIGHT = "#d5dbe3"
# Inches of the longer side of an image, and of the shorter one at least.
SIDE, LEAST = 3.6, 0.5


def map_figure(
    logits: Any, labels: Any, *, ignore_index: int | None = None, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw the confidence of each pixel of an image, and beside it which pixels are wrong.

    A calibrated network is wrong where it is unsure. Pixels that do not count are hatched.
    Confidence is shaded from 1/k, the least that the highest of k probabilities can be, to 1.

    Args:
        logits: (k, h, w).
        labels: (h, w).
        ignore_index: label of pixels that do not count, such as 255.
        title: above the figure.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    scores, truth = as_tensor("logits", logits).cpu(), as_tensor("labels", labels).cpu()
    if scores.ndim != 3 or truth.shape != scores.shape[1:]:
        raise ValueError(
            "need the logits (k, h, w) and labels (h, w) of one image, "
            f"got {tuple(scores.shape)} and {tuple(truth.shape)}"
        )
    counts = np.full(truth.shape, True) if ignore_index is None else truth.numpy() != ignore_index
    if not counts.any():
        raise ValueError(f"no pixel counts: every label is {ignore_index}, the ignore_index")
    held = Predictions.from_dense(scores[None], truth[None], ignore_index=ignore_index)
    confidence, right = held.confidence.numpy(), held.correct.numpy()
    height, width = (SIDE * side / max(counts.shape) for side in counts.shape)
    wide = max(4.4, 1.4 + 2 * width)
    figure = new_figure(wide, 1.5 + max(height, LEAST))
    left, beside = figure.subplots(1, 2)
    shown = left.imshow(
        _placed(confidence, counts),
        cmap="viridis",
        vmin=1 / held.classes,
        vmax=1,
        interpolation="nearest",
    )
    beside.imshow(
        _placed(right, counts),
        cmap=ListedColormap([OVER, RIGHT]),
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    for axes, name in ((left, "confidence"), (beside, "errors")):
        axes.set(xticks=[], yticks=[])
        axes.set_title(name, loc="left", fontsize=9.5, color=INK)
        # Seen where the picture has no pixel.
        axes.patch.set(facecolor="white", hatch="/////", edgecolor=BAR, linewidth=0)
        for spine in axes.spines.values():
            spine.set(color=SOFT, linewidth=0.6)
    # As high as the picture, whatever its shape.
    bar = figure.colorbar(shown, cax=left.inset_axes((1.03, 0, 0.04, 1)))
    bar.ax.locator_params(nbins=5)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=SOFT, labelsize=8, length=3, width=0.8)
    facts = f"accuracy {right.mean():.3f}, mean confidence {confidence.mean():.3f}"
    figure.suptitle(
        f"{shorten(title, int(11 * wide) - 3)}\n{facts}".strip(),
        x=0.02,
        horizontalalignment="left",
        fontsize=10.5,
        color=INK,
        parse_math=False,
    )
    parts = {"right": Patch(color=RIGHT, linewidth=0), "wrong": Patch(color=OVER, linewidth=0)}
    if not counts.all():
        parts["not counted"] = Patch(facecolor="white", edgecolor=BAR, hatch="/////", linewidth=0)
    legend_below(figure, list(parts.values()), list(parts), columns=3)
    return figure


def _placed(values: np.ndarray, counts: np.ndarray) -> np.ma.MaskedArray[Any, Any]:
    """Values of the pixels that count, where they lie."""
    image = np.zeros(counts.shape)
    image[counts] = values
    return np.ma.masked_array(image, ~counts)
