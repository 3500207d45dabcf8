"""Add class-adaptive label smoothing (CALS-ALM) to a Lightning training: the lines marked (*)."""

import logging
import tempfile
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant import Predictions, methods, metrics
from calibrant.data import Batch
from calibrant.integrations.lightning import CalibrationCallback, MethodCallback, load_calibrator

# Your own data and network: here five Gaussian classes in twenty dimensions, with few examples.
draw = torch.Generator().manual_seed(0)
centres = 0.45 * torch.randn(5, 20, generator=draw)
labels = torch.randint(5, (4800,), generator=draw)
inputs = centres[labels] + torch.randn(4800, 20, generator=draw)
train, val, test = (
    TensorDataset(inputs[part], labels[part])
    for part in (slice(400), slice(400, 800), slice(800, None))
)
# Lightning's advice about workers and loggers is for larger data.
warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    """A module as you have it; only the loss comes from a method."""

    def __init__(self, method: methods.Method) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
        self.method = method

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.layers(x)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss, which was `cross_entropy(self(x), y)`."""
        return self.method.loss(self, Batch.of(*batch)).mean()  # (*)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> dict[str, torch.Tensor]:
        """What the callbacks measure; it returned nothing."""
        x, y = batch
        return {"logits": self(x), "labels": y}  # (*)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As it was."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


for name, settings in (("cross_entropy", {}), ("cals_alm", {"margin": 4.0})):
    lightning.seed_everything(0, verbose=False)
    method = methods.build(name, classes=5, **settings)
    module = Net(method)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=40,
            accelerator="cpu",
            callbacks=[CalibrationCallback(), MethodCallback(method)],  # (*)
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(train, 50, shuffle=True), DataLoader(val, 400))
        calibrator = load_calibrator(trainer.checkpoint_callback.best_model_path)  # (*)
    with torch.no_grad():
        found = Predictions(module.eval()(test.tensors[0]), test.tensors[1])
    print(
        f"{name:14} accuracy {metrics.accuracy(found):.3f}  ECE {metrics.ece(found):.3f}  "
        f"(with temperature {calibrator.temperature:.2f}: {metrics.ece(found.map(calibrator)):.3f})"
    )
