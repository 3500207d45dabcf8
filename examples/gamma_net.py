"""Add a gamma per example (gamma-net) to your own training loop: the lines marked (*)."""

import torch
from torch import nn

from calibrant import Predictions, metrics
from calibrant.data import Batch
from calibrant.methods import GammaNet

# Your own data and network: here five Gaussian classes in twenty dimensions, with few examples.
draw = torch.Generator().manual_seed(0)
centres = 0.45 * torch.randn(5, 20, generator=draw)
labels = torch.randint(5, (4800,), generator=draw)
inputs = centres[labels] + torch.randn(4800, 20, generator=draw)
train, held_out, val, test = inputs.split([400, 400, 400, 3600])
train_labels, held_out_labels, val_labels, test_labels = labels.split([400, 400, 400, 3600])


def train_model(method: GammaNet | None) -> nn.Module:
    """Train with cross entropy, or with a method."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(40):
        for index in torch.randperm(len(train)).split(50):
            batch = Batch(train[index], train_labels[index], index)
            if method is None:
                loss = nn.functional.cross_entropy(model(batch.inputs), batch.labels)
            else:
                meta = Batch(held_out, held_out_labels, torch.arange(len(held_out)))  # (*)
                # At first the network is under-confident, and gamma would go to zero.
                if epoch >= 5:  # (*)
                    method.before_step(model, batch, meta, lr=0.05)  # (*) every step, or fewer
                loss = method.loss(model, batch).mean()  # (*)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if method is not None:
            found = Predictions(model.eval()(val).detach(), val_labels)  # (*)
            method.after_epoch(found)  # (*) warns if learning gamma failed
            model.train()
    return model.eval()


for name, method in (("cross entropy", None), ("gamma_net", GammaNet(5, meta_lr=0.003))):
    found = Predictions(train_model(method)(test).detach(), test_labels)
    print(f"{name:14} accuracy {metrics.accuracy(found):.3f}  ECE {metrics.ece(found):.3f}")
