"""A method with state as a callback of a Trainer."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from calibrant.integrations.transformers.batches import (
    IGNORED,
    check_labels,
    labelled_rows,
    logits_of,
)
from calibrant.integrations.transformers.evaluation import Measure, compute_metrics, predictions_of
from calibrant.integrations.transformers.held_out import HeldOut
from calibrant.integrations.transformers.losses import checked_method, mean_over, of_logits
from calibrant.losses import cross_entropy
from calibrant.methods.meta_learning import MetaLearner
from calibrant.shapes import Scalar
from calibrant.training.checkpoint import encoded


class MethodCallback(TrainerCallback, ExportableState):
    """A training method of a Trainer: pass it, its `compute_loss` and its `compute_metrics`.

    Every evaluation of the Trainer during training updates the method on its predictions, and logs
    its values with the metrics, as `eval_<name>`. So what the method counts in epochs
    is evaluations. Several evaluation datasets: the first one is used.

    Method state is part of `trainer_state.json` in each checkpoint, and
    `train(resume_from_checkpoint=...)` resumes it; every other call of `train` starts it anew.

    `gamma_net` and `meta_smoothing` learn on `held_out` before each step. They need the last linear
    layer, for whole examples and in one process; their loss in evaluation is cross entropy.

    Args:
        name: one of `calibrant.methods.METHODS`, except `calmo`.
        classes: number of classes.
        held_out: labelled examples, not in the training data, by position: mappings as in a
            dataset of the Trainer, whose collator makes the batches.
        counts: training examples of each class, for the setting `adjust`.
        metrics: your own `compute_metrics`; by default that of this module.
        ignore_index: label of positions without one.
        seed: decides the order of the held-out data.
        settings: of the method.
    """

    def __init__(
        self,
        name: str,
        *,
        classes: int,
        held_out: Sequence[Any] | None = None,
        counts: Sequence[int] | None = None,
        metrics: Measure | None = None,
        ignore_index: int = IGNORED,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.name, self.classes, self.ignore_index = name, classes, ignore_index
        self.method = checked_method(name, classes, counts, settings)
        self.held_out: HeldOut | None = None
        if isinstance(self.method, MetaLearner) and held_out is not None:
            self.held_out = HeldOut(self.method, held_out, seed=seed)
        elif isinstance(self.method, MetaLearner) or held_out is not None:
            verb = "does not use" if held_out is not None else "needs"
            raise ValueError(f"{name} {verb} held_out data")
        self.metrics = metrics or compute_metrics(ignore_index=ignore_index)
        self._start = self.state()
        # Whether an evaluation follows that updates the method, whether there was a loss, and
        # whether a training of the Trainer has begun.
        self._due = self._used = self._begun = False
        self._hook: Any = None

    def compute_loss(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Scalar:
        """Mean loss of the method, as `compute_loss_func` of the Trainer."""
        if torch.is_grad_enabled() and not self._begun:
            raise ValueError("pass the callback to the Trainer: callbacks=[callback]")
        self._used = True
        logits, ignore_index = logits_of(outputs), self.ignore_index
        check_labels(logits, labels)
        if self.held_out is None:
            losses = of_logits(self.method, logits, labels, ignore_index=ignore_index)
        else:
            rows = labelled_rows(logits, labels, ignore_index=ignore_index)
            training = torch.is_grad_enabled()
            losses = self.held_out.loss(*rows) if training else cross_entropy(*rows)
        return mean_over(losses, num_items_in_batch)

    def compute_metrics(self, evaluated: Any) -> dict[str, float]:
        """Metrics, as `compute_metrics` of the Trainer; updates the method if that is due."""
        found = dict(self.metrics(evaluated))
        if self._due:
            self._due = False
            val = predictions_of(evaluated, ignore_index=self.ignore_index)
            learnt = self.method.after_epoch(val)
            found |= {key: value for key, value in learnt.items() if isinstance(value, float)}
        return found

    def state(self) -> dict[str, Any]:
        """Method state as text, for `trainer_state.json`."""
        saved = base64.b64encode(encoded(self.method.state_dict())).decode()
        made = {"name": self.name, "classes": self.classes}
        return {"args": made, "attributes": {"saved": saved}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Check the arguments of the Trainer, and load the method state of its checkpoint."""
        config = getattr(given["model"], "config", None)
        outputs = getattr(config, "num_labels", None) or self.classes
        if outputs != self.classes:
            raise ValueError(
                f"classes of {self.name} must be the model's num_labels, {outputs}, "
                f"got {self.classes}"
            )
        if args.eval_strategy == "no" or args.batch_eval_metrics:
            raise ValueError(
                f"{self.name} is updated on all evaluation predictions: "
                'set eval_strategy="epoch", and batch_eval_metrics=False'
            )
        if args.restore_callback_states_from_checkpoint:
            raise ValueError(
                "restore_callback_states_from_checkpoint would replace this callback by another "
                "one: leave it False, the method is resumed without it"
            )
        saved = self._start
        if state.global_step:
            saved = state.stateful_callbacks.get(type(self).__name__)
        if not isinstance(saved, dict) or saved["args"]["name"] != self.name:
            raise ValueError(f"the checkpoint to resume from was not saved with {self.name}")
        self.method.to(args.device)
        content = io.BytesIO(base64.b64decode(saved["attributes"]["saved"]))
        loaded = torch.load(content, weights_only=True, map_location=args.device)
        self.method.load_state_dict(loaded)
        # An interrupted training has left these.
        self._due = False
        self.on_train_end(args, state, control)
        self._begun = True
        if self.held_out is not None:
            if args.world_size > 1 or args.n_gpu > 1:
                raise ValueError(f"{self.name} needs a Trainer with one process and one device")
            self._hook = self.held_out.attach(given["model"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Give the method its held-out data, every few steps."""
        method, step = self.method, state.global_step
        begun = state.epoch >= method.meta_start
        if self.held_out is not None and begun and step % method.meta_every == 0:
            self.held_out.before_step(
                given["model"],
                given["train_dataloader"].collate_fn,
                step=step,
                size=args.train_batch_size,
                part=args.eval_batch_size,
                lr=given["optimizer"].param_groups[0]["lr"],
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Remember whether the Trainer is about to evaluate."""
        if not self._used:
            raise ValueError("pass compute_loss_func=callback.compute_loss to the Trainer")
        self._due = control.should_evaluate

    on_epoch_end = on_step_end

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Check that the predictions of the evaluation were seen."""
        if self._due:
            raise ValueError("pass compute_metrics=callback.compute_metrics to the Trainer")

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Stop recording the last layer."""
        self._begun = False
        if self._hook is not None:
            self._hook.remove()
