"""Fit a calibrator to a Hugging Face model, and fold it into its classifier."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    default_data_collator,
)

from calibrant.calibrators import CALIBRATORS, Calibrator
from calibrant.export import fold
from calibrant.export.layers import FOLDS
from calibrant.integrations.transformers.batches import (
    IGNORED,
    Collate,
    check_labels,
    labelled_rows,
    logits_of,
    model_batch,
)
from calibrant.methods.heads import find_head
from calibrant.model_modes import evaluating
from calibrant.predictions import Predictions
from calibrant.setting_errors import did_you_mean

# Largest difference of log-probabilities between the folded model and the calibrator, and its
# part that grows with the largest logit: a few roundings in the precision of the model.
TOLERANCE, ROUNDINGS = 1e-4, 4
CALIBRATED = (
    "the model is calibrated already ({} is in its config); if it was trained since then, "
    "delete model.config.calibrant first"
)


def calibrate(
    model: PreTrainedModel,
    dataset: Any,
    *,
    calibrator: str = "temperature",
    processing_class: Any = None,
    data_collator: Collate | None = None,
    batch_size: int = 32,
    ignore_index: int = IGNORED,
) -> Calibrator:
    """Fit a calibrator on held-out data, and fold it into the classifier of the model, in place.

    The softmax of the logits is then calibrated: after `save_pretrained`, in `pipeline` and in an
    ONNX graph. `model.config.calibrant` records what was done. If the folded model does not give
    the calibrator's probabilities, it is restored, and `ValueError` is raised.

    Args:
        model: for sequence, image or token classification.
        dataset: labelled examples that the model was not trained on: mappings, by position.
        calibrator: "temperature", "vector" or "matrix".
        processing_class: as for Trainer: a tokenizer pads the examples of a batch.
        data_collator: makes a batch of a list of examples, in place of the usual one.
        batch_size: examples for each forward pass.
        ignore_index: label of positions without one.

    Returns:
        The calibrator, whose input are the logits of the model as it was before.
    """
    head = _checked_head(model, calibrator)
    pads = isinstance(processing_class, PreTrainedTokenizerBase)
    usual = DataCollatorWithPadding(processing_class) if pads else default_data_collator
    collate = data_collator or usual
    found: list[tuple[Tensor, Tensor]] = []
    first: dict[str, Any] = {}
    for start in range(0, len(dataset), batch_size):
        examples = [dataset[at] for at in range(start, min(start + batch_size, len(dataset)))]
        inputs, labels = model_batch(model, examples, collate)
        first = first or inputs
        logits = _logits(model, inputs)
        check_labels(logits, labels)
        rows = labelled_rows(logits, labels, ignore_index=ignore_index)
        found.append((rows[0].float().cpu(), rows[1].cpu()))
    if not found:
        raise ValueError("dataset must hold labelled examples, got none")
    predictions = Predictions(*(torch.cat(each) for each in zip(*found, strict=True)))
    fitted = CALIBRATORS[calibrator].fit(predictions)
    _fold(model, head, fitted, first)
    model.config.calibrant = {
        "calibrator": calibrator,
        "examples": len(predictions),
        "sha256": predictions.sha256,
    }
    return fitted


def _checked_head(model: Any, calibrator: str) -> nn.Linear:
    """The last linear layer of a classifier that the calibrator can be folded into."""
    if calibrator not in FOLDS:
        raise ValueError(f"calibrate folds no {calibrator!r}; {did_you_mean(calibrator, FOLDS)}")
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"expected a PreTrainedModel, got {type(model).__name__}; "
            "merge an adapter first (merge_and_unload)"
        )
    config = model.config
    other = config.problem_type in ("regression", "multi_label_classification")
    if other or (config.num_labels or 0) < 2:
        raise ValueError(
            "calibrate needs a classifier with one label of at least 2 for each example, "
            f"got problem_type {config.problem_type!r} with {config.num_labels} labels"
        )
    if getattr(config, "calibrant", None):
        raise ValueError(CALIBRATED.format(config.calibrant))
    head = find_head(model)
    if not isinstance(head, nn.Linear):
        raise ValueError(f"{type(model).__name__} does not end with nn.Linear")
    if head.bias is None and calibrator in ("vector", "matrix"):
        raise ValueError(
            f"the classifier of {type(model).__name__} has no bias, so {calibrator} scaling would "
            "be lost when the model is loaded; use temperature"
        )
    return head


def _logits(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Tensor:
    with evaluating(model), torch.no_grad():
        return logits_of(model(**inputs))


def _fold(
    model: PreTrainedModel, head: nn.Linear, fitted: Calibrator, inputs: Mapping[str, Any]
) -> None:
    """Replace the parameters of the head, and compare the model with the calibrator on a batch."""
    before = _logits(model, inputs)
    old = {name: each.clone() for name, each in head.state_dict().items()}
    head.load_state_dict(fold(fitted, head).state_dict())
    after = _logits(model, inputs)
    rows = before.reshape(-1, before.shape[-1])
    expected = fitted(rows.double())
    got = after.reshape(rows.shape).double().log_softmax(1)
    eps = torch.finfo(before.dtype).eps
    allowed = TOLERANCE + ROUNDINGS * eps * float(torch.stack([before, after]).abs().max())
    difference = float((got - expected).abs().max())
    # Written so that NaN fails.
    if not difference <= allowed:
        head.load_state_dict(old)
        raise ValueError(
            f"the logits of {type(model).__name__} are not the output of its last linear layer: "
            f"with the calibrator in it, log-probabilities differ by {difference:.2g}; "
            "the model is unchanged, calibrate its predictions instead"
        )
