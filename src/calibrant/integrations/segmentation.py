"""Losses of masks as modules `(logits, labels) -> loss`, for MONAI, mmsegmentation and others."""

from typing import Any

from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.methods import Calmo, Method, MethodModule, build


class SegmentationLoss(nn.Module):
    """The mean loss of a training method, for a host that calls `loss(logits, labels)`.

    Logits are (n, k, h, w), (n, k, h, w, d) or (n, k, t). Labels are class indices without the axis
    of classes, or with one of length 1, as MONAI has them. The state of a method with one is saved
    and moved with the module; call `loss.method.after_epoch(Predictions.from_dense(...))` on
    validation data after each epoch.

    Args:
        method: a name in `METHODS`, or a method.
        classes: k; needed with a name.
        ignore_index: label of ignored pixels.
        settings: settings of the method.

    Examples:
        >>> loss = SegmentationLoss("nacl", classes=3, ignore_index=255)
        >>> import torch
        >>> logits, labels = torch.zeros(2, 3, 8, 8), torch.full((2, 1, 8, 8), 255)
        >>> labels[:, :, :4] = 1
        >>> round(loss(logits, labels).item(), 4)
        1.1319
    """

    def __init__(
        self,
        method: str | Method,
        *,
        classes: int | None = None,
        ignore_index: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.classes = classes
        if isinstance(method, str):
            if classes is None:
                raise ValueError(f"{method} needs the number of classes: pass classes=...")
            method = build(method, classes=classes, **settings)
        elif settings or classes is not None:
            raise ValueError("classes and settings are those of the method: pass the method alone")
        if method.needs_meta or isinstance(method, Calmo):
            raise ValueError(
                f"{type(method).__name__} calls the network itself, a loss has only its logits; "
                "use another method, such as nacl, cals_alm or focal"
            )
        method.ignore_index = ignore_index
        self.state = MethodModule(method)

    @property
    def method(self) -> Method:
        """The method."""
        return self.state.method

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of the valid pixels; 0 if there are none."""
        if self.classes not in (None, logits.shape[1]):
            raise ValueError(
                f"logits must have {self.classes} classes, got shape {tuple(logits.shape)}"
            )
        if labels.ndim == logits.ndim:
            if labels.shape[1] != 1:
                raise ValueError(
                    f"labels must be class indices (n, ...) or (n, 1, ...), got "
                    f"{tuple(labels.shape)}: pass labels.argmax(1) of one-hot labels"
                )
            labels = labels[:, 0]
        loss = self.method.loss(nn.Identity(), Batch.of(logits, labels.long()))
        return loss.mean() if len(loss) or loss.ndim == 0 else loss.sum()
