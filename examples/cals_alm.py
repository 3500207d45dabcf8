"""Add class-adaptive label smoothing (CALS-ALM) to your own training loop: the lines marked (*)."""

import torch
from torch import nn

from calibrant import Predictions, metrics
from calibrant.data import Batch
from calibrant.methods import CalsAlm

# Your own data and network: here five Gaussian classes in twenty dimensions, with few examples.
draw = torch.Generator().manual_seed(0)
centres = 0.45 * torch.randn(5, 20, generator=draw)
labels = torch.randint(5, (4800,), generator=draw)
inputs = centres[labels] + torch.randn(4800, 20, generator=draw)
train, val, test = inputs.split([400, 400, 4000])
train_labels, val_labels, test_labels = labels.split([400, 400, 4000])


def train_model(method: CalsAlm | None) -> nn.Module:
    """Train with cross entropy, or with a method."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(40):
        for index in torch.randperm(len(train)).split(50):
            if method is None:
                loss = nn.functional.cross_entropy(model(train[index]), train_labels[index])
            else:
                loss = method.loss(model, Batch(train[index], train_labels[index], index))  # (*)
                loss = loss.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if method is not None:
            found = Predictions(model.eval()(val).detach(), val_labels)  # (*)
            method.after_epoch(found)  # (*) updates the multipliers
            model.train()
    return model.eval()


for name, method in (("cross entropy", None), ("cals_alm", CalsAlm(5, margin=4.0))):
    found = Predictions(train_model(method)(test).detach(), test_labels)
    print(f"{name:14} accuracy {metrics.accuracy(found):.3f}  ECE {metrics.ece(found):.3f}")
