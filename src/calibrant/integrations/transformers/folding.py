"""Fit a calibrator to a Hugging Face model, and fold it into its classifier."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    default_data_collator,
)

from calibrant.calibrators import CALIBRATORS, Calibrator
from calibrant.export import fold
from calibrant.integrations.transformers.batches import (
    IGNORED,
    LABELS,
    Collate,
    check_labels,
    labelled_rows,
    logits_of,
    model_batch,
)
from calibrant.methods.heads import find_head
from calibrant.model_modes import evaluating
from calibrant.predictions import Predictions
from calibrant.score_array import fingerprint
from calibrant.setting_errors import did_you_mean

# Calibrators that are folded here.
KINDS = ("temperature", "vector", "matrix")
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
    the calibrator's probabilities, it is restored, and `ValueError` is raised. A classifier that is
    still the one that was folded is not calibrated again.

    Args:
        model: for sequence, image or token classification.
        dataset: labelled examples that the model was not trained on: mappings, by position.
        calibrator: "temperature", "vector" or "matrix".
        processing_class: as for Trainer: a tokenizer pads the examples of a batch, and labels of
            tokens.
        data_collator: makes a batch of a list of examples, in place of the usual one.
        batch_size: examples for each forward pass.
        ignore_index: label of positions without one.

    Returns:
        The calibrator, whose input are the logits of the model as it was before.
    """
    head = _checked_head(model, calibrator)
    _check_dataset(dataset)
    collate = data_collator or _usual_collator(processing_class, dataset[0], ignore_index)
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
    predictions = Predictions(*(torch.cat(each) for each in zip(*found, strict=True)))
    fitted = _fit(calibrator, predictions)
    _fold(model, head, fitted, first)
    model.config.calibrant = {
        "calibrator": calibrator,
        "examples": len(predictions),
        "sha256": predictions.sha256,
        "head_sha256": _head_sha256(head),
    }
    return fitted


def _checked_head(model: Any, calibrator: str) -> nn.Linear:
    """The last linear layer of a classifier that the calibrator can be folded into."""
    if calibrator not in KINDS:
        raise ValueError(f"calibrate folds no {calibrator!r}; {did_you_mean(calibrator, KINDS)}")
    if not isinstance(model, PreTrainedModel):
        holds = not isinstance(model, nn.Module) and hasattr(model, "model")
        adapter = "merge an adapter first (merge_and_unload)"
        advice = "pass its model, as in trainer.model" if holds else adapter
        raise TypeError(f"expected a PreTrainedModel, got {type(model).__name__}; {advice}")
    config = model.config
    other = config.problem_type in ("regression", "multi_label_classification")
    if other or (config.num_labels or 0) < 2:
        raise ValueError(
            "calibrate needs a classifier with one label of at least 2 for each example, "
            f"got problem_type {config.problem_type!r} with {config.num_labels} labels"
        )
    head = find_head(model)
    if not isinstance(head, nn.Linear):
        raise ValueError(f"{type(model).__name__} does not end with nn.Linear")
    record = getattr(config, "calibrant", None)
    folded = record.get("head_sha256") if isinstance(record, dict) else None
    # A new classifier, or one that was trained further, may still have a record.
    if record and folded in (None, _head_sha256(head)):
        raise ValueError(CALIBRATED.format(record))
    if head.bias is None and calibrator in ("vector", "matrix"):
        raise ValueError(
            f"the classifier of {type(model).__name__} has no bias, so {calibrator} scaling would "
            "be lost when the model is loaded; use temperature"
        )
    return head


def _head_sha256(head: nn.Linear) -> str:
    """SHA-256 of the parameters in float32, which a saved and loaded model shares."""
    return fingerprint(*(each.detach().float().cpu() for each in head.parameters()))


def _check_dataset(dataset: Any) -> None:
    """Require examples by position."""
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise TypeError(f"dataset must hold examples, got {kind}; pass its dataset")
    if isinstance(dataset, Mapping):
        raise TypeError(
            f"dataset must hold examples by position, got {kind} with "
            f"{', '.join(map(str, dataset))}; pass one split"
        )
    if not len(dataset):
        raise ValueError("dataset must hold labelled examples, got none")


def _usual_collator(
    processing_class: Any, example: Mapping[str, Any], ignore_index: int
) -> Collate:
    """What makes batches of such examples, whose labels may be lists: one for each token."""
    label: Any = next((example[name] for name in LABELS if name in example), None)
    tokens = isinstance(label, list | tuple) or getattr(label, "ndim", 0) > 0
    if isinstance(label[0] if tokens and len(label) else label, str):
        raise ValueError(
            "labels must be integers, got names; model.config.label2id maps a name to its integer"
        )
    if not isinstance(processing_class, PreTrainedTokenizerBase):
        return default_data_collator
    if tokens:
        return DataCollatorForTokenClassification(processing_class, label_pad_token_id=ignore_index)
    return DataCollatorWithPadding(processing_class)


def _fit(calibrator: str, predictions: Predictions) -> Calibrator:
    """Fit, and advise no calibrator that cannot be folded."""
    try:
        return CALIBRATORS[calibrator].fit(predictions)
    except ValueError as error:
        problem, _, advice = str(error).partition("; ")
        if "structured" not in advice:
            raise
        raise ValueError(f"{problem}; use temperature") from None


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
