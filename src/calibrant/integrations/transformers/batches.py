"""Inputs, logits and labels of a batch: one row for each example or token."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from calibrant.shapes import Labels, Logits, shape

# The label of positions without one, everywhere in transformers.
IGNORED = -100
# Names of the label of one example, which collators rename to "labels".
LABELS = ("label", "labels", "label_ids")
Collate = Callable[[list[dict[str, Any]]], Mapping[str, Any]]


def logits_of(outputs: Any) -> Tensor:
    """The logits of a model's output, which is a mapping or a tuple."""
    kind = type(outputs).__name__
    if "CausalLM" in kind:
        raise ValueError(
            "a language model predicts the next token, so its labels would have to be shifted; "
            "use a model for sequence, image or token classification"
        )
    named = isinstance(outputs, Mapping)
    logits = outputs.get("logits") if named else outputs[0]
    if not isinstance(logits, Tensor):
        came = f"{kind} with {', '.join(outputs)}" if named else kind
        raise ValueError(
            f"the model must return logits, got {came}; "
            "use a model for sequence, image or token classification"
        )
    return logits


def check_labels(logits: Float[Tensor, "..."], labels: Any) -> None:
    """Require logits (n, k) or (n, tokens, k), and a class index for each."""
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        came = f"{labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(
            f"labels must be class indices, one for each example or token, got {came}; "
            "regression and several labels per example cannot be calibrated"
        )
    if logits.ndim not in (2, 3) or labels.shape != logits.shape[:-1] or logits.shape[-1] < 2:
        raise ValueError(
            "logits must be (n, k) or (n, tokens, k) with k of at least 2, and labels the same "
            f"without k; got {shape(logits)} and {shape(labels)}"
        )


def labelled_rows(
    logits: Float[Tensor, "..."], labels: Int[Tensor, "..."], *, ignore_index: int
) -> tuple[Logits, Labels]:
    """Checked logits and labels as rows, without those to ignore."""
    keep = labels != ignore_index
    return logits[keep], labels[keep]


def model_batch(
    model: nn.Module, examples: Sequence[Mapping[str, Any]], collate: Collate
) -> tuple[dict[str, Any], Tensor]:
    """Collate examples to the inputs of a model, on its device, and their labels.

    Columns that the model does not take, such as raw text, are left out, as in Trainer.
    """
    taken = {*signature(model.forward).parameters, *LABELS}
    rows = [{name: value for name, value in each.items() if name in taken} for each in examples]
    batch = dict(collate(rows))
    # A collator for tokens does not rename them.
    labels = batch.pop("labels", batch.pop("label", None))
    if labels is None:
        raise ValueError(f"each example needs a label, got {', '.join(examples[0])}")
    device = next(model.parameters()).device
    inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
    return inputs, labels.to(device)
