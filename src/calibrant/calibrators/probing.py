"""Whether a calibrator gives probabilities for any finite logits, however large or small."""

import torch

from calibrant.calibrators.base import Calibrator
from calibrant.files.checks import one_line

# Sizes of logits that are tried, beside the least normal number of each precision.
SIZES = (1.0, 1e4, 1e30)
# How far the probabilities of a row may be from summing to one.
TOLERANCE = 1e-3
LAST = torch.tensor([-1])


def check_probabilities(calibrator: Calibrator) -> None:
    """Refuse parameters that do not fit together, or that overflow to NaN.

    Applied in float32 and in float64 to logits of every size: one class above, one class below
    all others, all classes different, in both orders, and all equal; and with a masked class.
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
                raise ValueError(f"parameters do not fit: {one_line(error)}") from None
            # Written so that NaN fails.
            if out.shape != given.shape or not bool(((total - 1).abs() <= TOLERANCE).all()):
                name = str(dtype).removeprefix("torch.")
                raise ValueError(
                    f"parameters do not fit: they give no probabilities for {name} logits "
                    f"of size {size:g}"
                )
