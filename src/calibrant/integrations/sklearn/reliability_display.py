"""Reliability diagrams as a display of scikit-learn."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils.validation import _check_pos_label_consistency, check_is_fitted, column_or_1d

from calibrant.extras import need
from calibrant.integrations.sklearn.scores import as_predictions, numbered, sample_weights
from calibrant.metrics import BinSums
from calibrant.predictions import Predictions
from calibrant.report.reliability_points import (
    POSITIVE,
    TOP_LABEL,
    Points,
    Terms,
    diagram_sums,
    points_of,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import matplotlib.lines

STRATEGIES = ("uniform", "quantile")
DIAGONAL = "calibrated"
# The histogram at the bottom takes at most this part of the axes.
STRIP = 0.12


class ReliabilityDisplay:
    """How often predictions are right, against their probability, with intervals.

    In place of scikit-learn's `CalibrationDisplay`: the band holds Wilson intervals of the
    frequencies, the legend has the ECE, and the strip at the bottom shows how many examples have
    each probability. Of two classes it draws the positive class; of more, the confidence of the
    predicted class. Use `from_estimator` or `from_predictions` to create one.

    Args:
        predictions: what is drawn.
        n_bins: number of bins.
        strategy: "uniform" for bins of equal width, "quantile" for bins of equal mass.
        level: confidence level of the intervals.
        estimator_name: label of the line.
        pos_label: label of the positive class, shown at the axes.

    Attributes:
        points: means, frequencies and intervals of the bins. As in the reliability diagrams of
            reports, neighbours are pooled until a bin holds 10 examples.
        prob_true: frequencies of the bins, as in `CalibrationDisplay`.
        prob_pred: mean probabilities of the bins.
        y_prob: probabilities that are drawn, (n,).
        ece: expected calibration error over these bins, before pooling.
        line_: the line.
        band_: the intervals.
        ax_: the axes.
        figure_: the figure.
    """

    line_: "matplotlib.lines.Line2D"
    band_: Any
    ax_: "matplotlib.axes.Axes"
    figure_: "matplotlib.figure.Figure"

    def __init__(
        self,
        predictions: Predictions,
        *,
        n_bins: int = 15,
        strategy: Literal["uniform", "quantile"] = "uniform",
        level: float = 0.95,
        estimator_name: str | None = None,
        pos_label: Any = None,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
        self.predictions = predictions
        self.level = level
        self.estimator_name = estimator_name
        self.pos_label = pos_label
        self._terms: Terms = POSITIVE if predictions.classes == 2 else TOP_LABEL
        sums = diagram_sums(predictions, self._terms, bins=n_bins, adaptive=strategy == "quantile")
        self.points: Points = points_of(sums, level=level, merge=True)
        self.ece = float(sums.ece)
        self.prob_true, self.prob_pred = self.points.accuracy, self.points.confidence
        binary = predictions.classes == 2
        self.y_prob = (predictions.positive_probs if binary else predictions.confidence).numpy()
        # Of equal mass, all bars of the strip would be the same.
        self._shares: BinSums = diagram_sums(predictions, self._terms, bins=n_bins)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,  # noqa: N803, scikit-learn's name
        y: Any,
        *,
        name: str | None = None,
        **options: Any,
    ) -> "ReliabilityDisplay":
        """Draw the probabilities of a fitted classifier; options of `from_predictions`."""
        check_is_fitted(estimator)
        if not hasattr(estimator, "predict_proba"):
            raise ValueError(f"{type(estimator).__name__} has no predict_proba")
        name = type(estimator).__name__ if name is None else name
        probs, labels = estimator.predict_proba(X), estimator.classes_
        return cls.from_predictions(y, probs, labels=labels, name=name, **options)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        labels: Any = None,
        sample_weight: Any = None,
        n_bins: int = 15,
        strategy: Literal["uniform", "quantile"] = "uniform",
        level: float = 0.95,
        pos_label: Any = None,
        name: str | None = None,
        ax: "matplotlib.axes.Axes | None" = None,
        ref_line: bool = True,
        **kwargs: Any,
    ) -> "ReliabilityDisplay":
        """Draw given probabilities.

        Args:
            y_true: labels, (n,).
            y_prob: probabilities of the positive class, (n,), or of each class, (n, k).
            labels: labels of the columns of (n, k); by default the sorted labels in `y_true`.
            sample_weight: (n,); only ratios matter. Intervals and the pooling of bins are for the
                effective number of examples, the square of the sum over the sum of squares.
            n_bins: number of bins.
            strategy: "uniform" for bins of equal width, "quantile" for bins of equal mass.
            level: confidence level of the intervals.
            pos_label: label of the positive class; by default the label of the last column, and
                of (n,) probabilities 1.
            name: label of the line.
            ax: axes to draw on; by default those of a new figure.
            ref_line: draw the diagonal, on which predictions are calibrated.
            kwargs: options of `matplotlib.axes.Axes.plot` for the line.
        """
        y, probs = column_or_1d(y_true), np.asarray(y_prob, dtype=np.float64)
        if probs.ndim == 1:
            pos_label = _check_pos_label_consistency(pos_label, y)
            others = [each for each in np.unique(y).tolist() if each != pos_label]
            labels = np.array([*(others or [f"not {pos_label}"]), pos_label], dtype=object)
        classes, index = numbered(y, labels)
        weights = sample_weights(sample_weight, probs)
        if weights is not None and weights.any():
            # Their sum is then the effective number of examples.
            weights = weights * (weights.sum() / np.square(weights).sum())
        predictions = as_predictions(probs, "probs", classes, index, weights)
        if len(classes) == 2 and pos_label is not None:
            if pos_label not in classes.tolist():
                raise ValueError(f"pos_label must be one of {classes.tolist()}, got {pos_label!r}")
            predictions = predictions.with_positive(classes.tolist().index(pos_label))
        elif pos_label is not None:
            raise ValueError("pos_label is for two classes; of more, the predicted class is drawn")
        shown = classes.tolist()[-1] if len(classes) == 2 and pos_label is None else pos_label
        display = cls(
            predictions,
            n_bins=n_bins,
            strategy=strategy,
            level=level,
            estimator_name=name,
            pos_label=shown,
        )
        return display.plot(ax=ax, ref_line=ref_line, **kwargs)

    def plot(
        self,
        *,
        ax: "matplotlib.axes.Axes | None" = None,
        name: str | None = None,
        ref_line: bool = True,
        **kwargs: Any,
    ) -> "ReliabilityDisplay":
        """Draw it; several displays on the same axes are laid over one another."""
        need("matplotlib", extra="report", what="drawing figures")
        from matplotlib import pyplot
        from matplotlib.lines import Line2D

        from calibrant.report.figures import style as look

        for option in kwargs:
            # Those of `plot` that are none of the line.
            if not hasattr(Line2D, f"set_{option}") and option not in ("scalex", "scaley", "data"):
                raise TypeError(f"no option {option!r}, and lines of matplotlib have none")
        if ax is None:
            ax = pyplot.subplots(figsize=(5.2, 5.2), layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure  # type: ignore[assignment]
        name = self.estimator_name if name is None else name
        drawn = sum(str(each.get_gid()).startswith("reliability") for each in ax.lines)
        if not drawn:
            look.style_axes(ax)
        if ref_line and DIAGONAL not in ax.get_legend_handles_labels()[1]:
            ax.plot([0, 1], [0, 1], color=look.SOFT, linewidth=1, linestyle=look.DASHES,
                    label=DIAGONAL, zorder=1)  # fmt: skip
        given: dict[str, Any] = {
            "color": look.SERIES[drawn % len(look.SERIES)],
            "marker": look.MARKERS[drawn % len(look.MARKERS)],
            "label": f"{'' if name is None else f'{name}, '}ECE {self.ece:.3f}",
            "linewidth": 1.8,
            "markersize": 5,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
            "gid": f"reliability {drawn}",
            "zorder": 4,
            "clip_on": False,
        }
        (self.line_,) = ax.plot(self.points.confidence, self.points.accuracy, **given | kwargs)
        hue: Any = self.line_.get_color()
        self.band_ = ax.fill_between(
            self.points.confidence, self.points.low, self.points.high,
            color=hue, alpha=look.LIGHT_BAND, linewidth=0, zorder=2,
        )  # fmt: skip
        self._draw_strip(hue)
        self._label_axes()
        return self

    def _draw_strip(self, hue: Any) -> None:
        """Draw the share of the examples in each bin, along the bottom."""
        heights = STRIP * self._shares.share / self._shares.share.max()
        self.ax_.stairs(heights, self._shares.edges, fill=True, color=hue, alpha=0.2, zorder=1.5)
        self.ax_.stairs(heights, self._shares.edges, color=hue, alpha=0.6, linewidth=1, zorder=1.6)

    def _label_axes(self) -> None:
        from calibrant.report.figures import style as look

        positive = "" if self.pos_label is None else f" of {look.shorten(str(self.pos_label), 30)}"
        self.ax_.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        terms = self._terms
        score = f"mean predicted probability{positive}" if terms is POSITIVE else "mean confidence"
        self.ax_.set_xlabel(score, parse_math=False)
        self.ax_.set_ylabel(f"{terms.frequency}{positive}", parse_math=False)
        self.ax_.set_title(
            f"bands: {100 * self.level:g} % intervals; bottom: share of examples",
            loc="left", fontsize=8.5, color=look.SOFT,
        )  # fmt: skip
        self.ax_.legend(loc="best", frameon=False, fontsize=9, labelcolor=look.INK)
