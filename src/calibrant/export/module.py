"""A calibrator as a torch module."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.blend import Blend
from calibrant.shapes import Logits


class CalibratorModule(nn.Module):
    """Map logits to log-probabilities, (n, k) each; the parameters are buffers, not trained.

    `.to(device)` moves and `state_dict` saves them; `.to(dtype)` rounds them. It is differentiable
    in the logits.
    """

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator = calibrator
        given = calibrator.parts if isinstance(calibrator, Blend) else ()
        # The parts of a blend are submodules.
        self._parts = [CalibratorModule(part) for part in given]
        if given:
            self.parts = nn.ModuleList(self._parts)
        for name, value in calibrator.parameters.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value.clone())
            elif isinstance(value, float):
                self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def forward(self, logits: Logits) -> Logits:
        """Return log-probabilities, with the current buffers."""
        return self.current()(logits)

    def current(self) -> Calibrator:
        """Return the calibrator with the current buffers."""
        return replace(self.calibrator, **self._current())

    def extra_repr(self) -> str:
        """Name and number of classes."""
        return f"{type(self.calibrator).__name__}, classes={self.calibrator.classes}"

    def _current(self) -> Mapping[str, Any]:
        if self._parts:
            return {"parts": tuple(part.current() for part in self._parts)}
        # Calibrators have float64 tensors and floats, also after a cast of the buffers.
        given = self.calibrator.parameters
        return {
            name: buffer.to(given[name].dtype) if isinstance(given[name], Tensor) else float(buffer)
            for name, buffer in self.named_buffers()
        }


def as_module(calibrator: Calibrator) -> CalibratorModule:
    """Convert a calibrator to a module, for example for `nn.Sequential`.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> layer = as_module(TemperatureScaling(classes=2, temperature=2.0))
        >>> layer(torch.tensor([[2.0, 0.0]]).double()).exp().round(decimals=4).tolist()
        [[0.7311, 0.2689]]
    """
    return CalibratorModule(calibrator)
