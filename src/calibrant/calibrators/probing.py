"""Check that a calibrator returns probabilities for finite logits of any size."""

import torch

from calibrant.calibrators.base import Calibrator
from calibrant.files.checks import one_line

# Sizes of logits to try, besides the smallest normal number of each dtype.
SIZES = (1.0, 1e4, 1e30)
# Tolerance of the sum of probabilities.
TOLERANCE = 1e-3
LAST = torch.tensor([-1])


def check_probabilities(calibrator: Calibrator) -> None:
    """Refuse inconsistent parameters, or parameters that overflow to NaN.

    Applies the calibrator in float32 and float64 to logits of every size: one class above or
    below all others, all classes different in both orders, all equal, and one class masked.
    """
    for dtype in (torch.float32, torch.float64):
        rows = torch.zeros(5, calibrator.classes, dtype=dtype)
        rows[0, 0], rows[1, -1] = 1, -1
        rows[2] = torch.linspace(-1, 1, calibrator.classes, dtype=dtype)
        rows[3] = -rows[2]
        for size in (torch.finfo(dtype).tiny, *SIZES):
            try:
                given = torch.cat([rows * size, (rows[3:4] * size).index_fill(1, LAST, -torch.inf)])
                out = calibrator(given)
                total = out.double().exp().sum(1)
            except (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError) as error:
                raise ValueError(f"invalid parameters: {one_line(error)}") from None
            # Written so that NaN fails.
            if out.shape != given.shape or not bool(((total - 1).abs() <= TOLERANCE).all()):
                name = str(dtype).removeprefix("torch.")
                raise ValueError(
                    f"invalid parameters: no probabilities for {name} logits of size {size:g}"
                )
