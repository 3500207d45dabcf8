"""Train a MONAI network with an average calibration error: the lines marked (*)."""

import torch
from monai.networks.nets import BasicUNet

from calibrant import Predictions, metrics
from calibrant.integrations.segmentation import SegmentationLoss  # (*)

# Your own images and masks: here noisy discs of two kinds, and pixels of unknown label (255).
SIZE, VOID, EPOCHS = 32, 255, 120
draw = torch.Generator().manual_seed(0)
at = torch.arange(SIZE).float()


def discs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, h, w) and masks (n, 1, h, w) of 0, 1, 2 or 255."""
    place = SIZE * (0.2 + 0.6 * torch.rand(count, 2, 2, 1, 1, generator=draw))
    radius = SIZE * (0.1 + 0.15 * torch.rand(count, 2, 1, 1, generator=draw))
    distance = (place[:, :, 0] - at[:, None]) ** 2 + (place[:, :, 1] - at) ** 2
    inside = distance < radius**2
    masks = torch.where(inside[:, 1], 2, inside[:, 0].long())
    images = 0.5 * masks + 0.6 * torch.randn(masks.shape, generator=draw)
    masks[torch.rand(masks.shape, generator=draw) < 0.02] = VOID
    return images[:, None], masks[:, None]


train_images, train_masks = discs(24)
test_images, test_masks = discs(100)


for name in ("cross_entropy", "soft_l1_ace"):
    loss_function = SegmentationLoss(name, classes=3, ignore_index=VOID)  # (*)
    torch.manual_seed(0)
    model = BasicUNet(spatial_dims=2, in_channels=1, out_channels=3, features=(8, 8, 16, 16, 16, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for index in torch.randperm(24).split(8):
            loss = loss_function(model(train_images[index]), train_masks[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        logits = model.eval()(test_images)
    found = Predictions.from_dense(logits, test_masks[:, 0], ignore_index=VOID)
    accuracy, error = metrics.accuracy(found), metrics.ece(found)
    print(f"{name:14} accuracy of pixels {accuracy:.3f}  ECE {error:.3f}")
