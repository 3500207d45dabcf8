"""Held-out data for methods that learn from a lookahead step of the last layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.integrations.transformers.batches import Collate, model_batch
from calibrant.methods.heads import find_head
from calibrant.methods.meta_learning import MetaLearner
from calibrant.model_modes import evaluating
from calibrant.shapes import Labels, Logits, PerExample
from calibrant.training.randomness import meta_order

NOT_LAST = (
    "{} needs the logits of whole examples to be the output of the last linear layer, which got "
    "{} of {}; choose another method"
)


class HeldOut:
    """Gives a method the inputs of the last layer: of training batches and of held-out ones.

    A Trainer runs the network before it asks for the loss. To the method the last layer is the
    whole network, and its inputs are the features recorded in that forward pass, with gradient.

    Args:
        method: learns on the data.
        dataset: examples that are not in the training data; see `model_batch`.
        seed: decides their order.
    """

    def __init__(self, method: MetaLearner, dataset: Sequence[Any], *, seed: int) -> None:
        if getattr(method, "inputs", "features") != "features":
            raise ValueError("with a Trainer the inputs of the gamma network can only be features")
        if not len(dataset):
            raise ValueError("held_out must hold labelled examples, got none")
        self.method, self.dataset, self.seed = method, dataset, seed
        self.head: nn.Module = nn.Identity()
        # Input and output of the last layer in its last call.
        self.recorded = (torch.zeros(0), torch.zeros(0))

    def attach(self, model: nn.Module) -> Any:
        """Record the calls of the last layer, until the handle that is returned is removed."""
        self.head = find_head(model) or self.head
        return self.head.register_forward_hook(self._record)

    def _record(self, head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.recorded = (inputs[0], output)

    def before_step(
        self, model: nn.Module, collate: Collate, *, step: int, size: int, part: int, lr: float
    ) -> None:
        """Give the method the held-out batch of a step; their order depends on the seed alone.

        Args:
            model: the network, run in evaluation mode without gradient.
            collate: makes a batch of a list of examples.
            step: number of the step.
            size: examples of the batch, unless the method has a number of its own.
            part: examples for each forward pass.
            lr: learning rate of the lookahead step.
        """
        size, position = self.method.meta_batch or size, step // self.method.meta_every
        index = meta_order(len(self.dataset), size, seed=self.seed, position=position)
        features, labels = [], []
        for some in torch.split(index, part):
            inputs, own = model_batch(model, [self.dataset[i] for i in some.tolist()], collate)
            with evaluating(model), torch.no_grad():
                model(**inputs)
            features.append(self.recorded[0])
            labels.append(own)
        meta = Batch(torch.cat(features), torch.cat(labels), index)
        # The training batch comes with the loss.
        self.method.before_step(self.head, meta, meta, lr)

    def loss(self, logits: Logits, labels: Labels) -> PerExample:
        """Loss of each example of the training batch that the network was just run on."""
        features, output = self.recorded
        # Logits that are not finite are reported by the Trainer.
        same = output.shape == logits.shape
        if not same or not torch.allclose(output.to(logits), logits, equal_nan=True):
            name = type(self.method).__name__
            raise ValueError(NOT_LAST.format(name, tuple(output.shape), tuple(logits.shape)))
        losses = self.method.loss(self.head, Batch.of(features, labels))
        # The graph of the step is not kept.
        self.recorded = (torch.zeros(0), torch.zeros(0))
        return losses
