"""Losses, training methods, metrics and calibrators for Hugging Face models and their Trainer.

For sequence, image and token classification; everything goes through arguments that `Trainer` has:
`compute_loss_func`, `callbacks` and `compute_metrics`. `calibrate` needs no Trainer.
"""

from calibrant.extras import need

need("transformers", extra="transformers", what="calibrant.integrations.transformers")

# After the check above, which explains a missing package.
from calibrant.integrations.transformers.callback import MethodCallback  # noqa: E402
from calibrant.integrations.transformers.evaluation import compute_metrics  # noqa: E402
from calibrant.integrations.transformers.folding import calibrate  # noqa: E402
from calibrant.integrations.transformers.losses import compute_loss  # noqa: E402

__all__ = ["MethodCallback", "calibrate", "compute_loss", "compute_metrics"]
