"""A change of class priors between the data of the fit and deployment."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, check_tensor, class_frequencies
from calibrant.calibrators.masks import log_softmax, mask_of
from calibrant.calibrators.prior_estimation import Method, estimate_prior
from calibrant.calibrators.priors import Prior, as_prior
from calibrant.calibrators.temperature import Identity
from calibrant.predictions import Predictions
from calibrant.shapes import Logits


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PriorShift(Calibrator):
    r"""Other class priors: a calibrator, then the ratio of target to source priors.

    $$\log p'(k \mid x) = \log p(k \mid x) + \log \frac{\pi'_k}{\pi_k} - \log c(x)$$

    with the calibrated probabilities p, the priors $\pi$ for which they are calibrated, the
    priors $\pi'$ of deployment, and c(x) so that probabilities sum to 1. It is exact if the
    examples of each class look the same in both, so that only the frequencies of classes differ.
    Undersampling and reweighting of classes in training are such changes.

    It is not in `CALIBRATORS`, since its `fit` needs the target priors. With target equal to
    source it is the calibrator inside.

    Attributes:
        source: class priors for which `calibrator` gives calibrated probabilities, (k,).
        target: class priors of deployment, (k,).
        calibrator: applied first; `Identity` if the scores are calibrated already.

    References:
        Elkan, The Foundations of Cost-Sensitive Learning, IJCAI 2001.

    Examples:
        >>> shift = PriorShift.of_priors(0.5, 0.01)
        >>> shift(torch.tensor([[0.0, 0.0]]).double()).exp().round(decimals=4).tolist()
        [[0.99, 0.01]]
    """

    source: Prior
    target: Prior
    calibrator: Calibrator

    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source", "target"):
            value = getattr(self, name)
            check_tensor(name, value, (self.classes,))
            as_prior(name, value, classes=self.classes)
        if not isinstance(self.calibrator, Calibrator) or isinstance(self.calibrator, PriorShift):
            raise ValueError(
                "PriorShift follows a calibrator of logits alone, "
                f"not {type(self.calibrator).__name__}"
            )
        if self.calibrator.classes != self.classes:
            raise ValueError(
                f"priors are of {self.classes} classes, "
                f"{type(self.calibrator).__name__} has {self.calibrator.classes}"
            )

    @classmethod
    def fit(
        cls,
        predictions: Predictions,
        *,
        target: Any = None,
        unlabelled: Predictions | None = None,
        method: Method = "em",
        calibrator: Calibrator | None = None,
    ) -> "PriorShift":
        """Take the source priors from labels, and the target priors as given or estimated.

        Args:
            predictions: labelled examples of the source, such as those `calibrator` was fitted to.
            target: known priors: of class 1 of two, of each class, or by class name.
            unlabelled: predictions of the target, to estimate its priors; labels are not used.
            method: of the estimate, see `estimate_prior`, which also gives its interval.
            calibrator: applied first; by default the scores are calibrated already.
        """
        if (target is None) == (unlabelled is None):
            raise ValueError(
                "pass either target=..., the class priors of deployment, or unlabelled=..., "
                "predictions to estimate them from"
            )
        first = Identity.fit(predictions) if calibrator is None else calibrator
        if unlabelled is not None:
            found = estimate_prior(
                unlabelled.map(first), predictions.map(first), method=method, resamples=0
            )
            target = found.prior
        source = class_frequencies(predictions)
        return cls.of_priors(source, target, calibrator=first, class_names=predictions.class_names)

    @classmethod
    def of_priors(
        cls,
        source: Any,
        target: Any,
        *,
        calibrator: Calibrator | None = None,
        class_names: Sequence[str] | None = None,
    ) -> "PriorShift":
        """Construct it from known priors: of class 1 of two, of each class, or by class name."""
        if calibrator is None:
            sized = [each for each in (class_names, source, target) if isinstance(each, Sized)]
            calibrator = Identity(classes=max(map(len, sized), default=2))
        classes = calibrator.classes
        return cls(
            classes=classes,
            source=as_prior("source", source, classes=classes, class_names=class_names),
            target=as_prior("target", target, classes=classes, class_names=class_names),
            calibrator=calibrator,
            origin=calibrator.origin,
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Calibrate, add the log of the ratio of the priors, and normalise."""
        log_probs: Tensor = self.calibrator(logits)
        return log_softmax(log_probs + self.log_ratio.to(logits), mask_of(logits))

    @property
    def log_ratio(self) -> Prior:
        """What is added to the log-probabilities: log of target over source, (k,)."""
        return torch.log(self.target) - torch.log(self.source)

    @property
    def zero_floor(self) -> float | None:
        """That of the calibrator inside."""
        return self.calibrator.zero_floor

    @property
    def size(self) -> int:
        """Number of parameters, with those of the calibrator inside."""
        return super().size + self.calibrator.size
