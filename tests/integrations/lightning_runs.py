"""Trainings by Lightning that several tests make; also run by torchrun, for two processes.

Arguments: the package, and a folder, into which the first process writes its results.
"""

import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from calibrant import data, methods
from calibrant.data import Batch
from calibrant.integrations.lightning import CalibrationCallback, MethodCallback
from calibrant.training.randomness import epoch_order

SPLITS = data.load("blobs", 0, limit=411).with_meta(0.25, seed=0)
CASES: dict[str, dict[str, Any]] = {
    "cross_entropy": {},
    "cals_alm": {"margin": 1.0, "rho_step": 1},
    "adafocal": {},
    "gamma_net": {"every": 2, "bandwidth": 0.1, "meta_lr": 0.01, "meta_batch": 30},
}


def dataset(split: data.Split) -> TensorDataset:
    return TensorDataset(split.inputs, split.labels)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    (width,) = SPLITS.shape
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, SPLITS.classes))


class Order(DistributedSampler):
    """The order of examples in calibrant's own loop; each process has its share of every batch."""

    def __init__(self, batch: int, rank: int, world_size: int) -> None:
        super().__init__(SPLITS.train, num_replicas=world_size, rank=rank)
        self.whole = batch * world_size
        self.steps = len(SPLITS.train) // self.whole
        self.start = self.at = 0

    def __len__(self) -> int:
        return self.steps * self.whole // self.num_replicas

    def __iter__(self):
        order = epoch_order(len(SPLITS.train), seed=0, epoch=self.epoch)
        first, self.start = self.start, 0
        for at in range(first, self.steps):
            self.at = at
            whole = order[at * self.whole : (at + 1) * self.whole]
            yield from whole[self.rank :: self.num_replicas].tolist()


class Loader(DataLoader):
    """A training loader that Lightning can resume in the middle of an epoch."""

    def state_dict(self) -> dict[str, int]:
        return {"next": self.sampler.at + 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.sampler.start = state["next"] % self.sampler.steps


def train_loader(batch: int = 50, rank: int = 0, world_size: int = 1) -> Loader:
    own = batch // world_size
    return Loader(dataset(SPLITS.train), own, sampler=Order(own, rank, world_size))


def val_loader() -> DataLoader:
    return DataLoader(dataset(SPLITS.val), 64)


def module_of(lightning: Any, method: methods.Method) -> Any:
    """A module as users write it."""

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.method = network(), method

        def forward(self, inputs):
            return self.layers(inputs)

        def training_step(self, batch, batch_idx):
            return self.method.loss(self, Batch.of(*batch)).mean()

        def validation_step(self, batch, batch_idx):
            inputs, labels = batch
            return {"logits": self(inputs), "labels": labels}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    return Net()


def callback_of(method: methods.Method) -> MethodCallback:
    held_out = {"held_out": dataset(SPLITS.meta)} if method.needs_meta else {}
    return MethodCallback(method, **held_out)


def trainer_of(lightning: Any, callbacks: list[Any], **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "max_epochs": 3}
    return lightning.Trainer(**(quiet | {"log_every_n_steps": 1} | options), callbacks=callbacks)


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in module.parameters()])


def trained(
    lightning: Any, name: str, *, precision: str, world_size: int = 1, rank: int = 0
) -> dict[str, Any]:
    """Weights, method state and what was logged after a training."""
    method = methods.build(name, classes=SPLITS.classes, **CASES[name])
    module, measured = module_of(lightning, method), CalibrationCallback()
    options = {"strategy": "ddp", "devices": world_size} if world_size > 1 else {}
    trainer = trainer_of(lightning, [measured, callback_of(method)], precision=precision, **options)
    trainer.fit(module, train_loader(50, rank, world_size), val_loader())
    logged = {key: float(value) for key, value in trainer.callback_metrics.items()}
    return {
        "weights": weights(module),
        "state": method.state_dict(),
        "examples": len(measured.predictions),
        "logged": logged,
    }


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    package, folder = sys.argv[1:]
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    lightning = import_module(package)
    found = {
        name: trained(lightning, name, precision="64-true", world_size=world_size, rank=rank)
        for name in ("cals_alm", "gamma_net")
    }
    if rank == 0:
        torch.save(found, Path(folder) / "two.pt")


if __name__ == "__main__":
    main()
