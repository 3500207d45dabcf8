"""Calibrate a network with several labels for each example: the lines marked (*)."""

import torch
from torch import nn

from calibrant import MultiLabel, metrics
from calibrant.calibrators import MultiLabelCalibrator

# Your own data and network: here twelve labels, some of them rare, that share one input.
draw = torch.Generator().manual_seed(0)
directions = 0.7 * torch.randn(20, 12, generator=draw)
offsets = torch.linspace(-3.0, 0.5, 12)
inputs = torch.randn(6400, 20, generator=draw)
labels = torch.bernoulli((inputs @ directions + offsets).sigmoid(), generator=draw)
train, val, test = inputs.split([400, 1000, 5000])
train_labels, val_labels, test_labels = labels.split([400, 1000, 5000])

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
# Rare labels are often weighted up, which makes their probabilities too high.
loss = nn.BCEWithLogitsLoss(pos_weight=torch.full((12,), 5.0))
for _ in range(60):
    optimizer.zero_grad()
    loss(model(train), train_labels).backward()
    optimizer.step()

with torch.no_grad():
    before = MultiLabel(model(test), test_labels)
    cal = MultiLabelCalibrator.fit(MultiLabel(model(val), val_labels))  # (*)
    after = before.map(cal)  # (*)
for name, found in (("network", before), ("calibrated", after)):
    ece = metrics.macro(metrics.binary_ece, found)
    print(f"{name:14} log loss {metrics.macro(metrics.nll, found):.3f}  macro ECE {ece:.3f}")
