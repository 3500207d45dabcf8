"""Method state in the state_dict of a host."""

import io

import pytest
import torch
from torch import nn

from calibrant.data import Batch
from calibrant.methods import AdaFocal, CalsAlm, GammaNet, MetaSmoothing, MethodModule
from calibrant.predictions import Predictions

K = 3
METHODS = {
    "cals_alm": lambda: CalsAlm(K, margin=0.1),
    "adafocal": lambda: AdaFocal(K),
    "gamma_net": lambda: GammaNet(K),
    "meta_smoothing": lambda: MetaSmoothing(K),
}


class Host(nn.Module):
    """A network with a method, as in a Lightning module."""

    def __init__(self, method):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, K))
        self.calibration = MethodModule(method)

    def forward(self, inputs):
        return self.network(inputs)


def trained(host, epochs, start=0):
    """Train with the method, all of its hooks and a plain optimizer."""
    method, optimizer = host.calibration.method, torch.optim.SGD(host.parameters(), lr=0.1)
    for epoch in range(start, start + epochs):
        generator = torch.Generator().manual_seed(epoch)
        inputs = torch.randn(64, 4, generator=generator)
        labels = inputs[:, :K].argmax(1)
        batch = Batch(inputs[:32], labels[:32], torch.arange(32))
        meta = Batch(inputs[32:], labels[32:], torch.arange(32, 64))
        if method.needs_meta:
            method.before_step(host.network, batch, meta, 0.1)
        loss = host.calibration(host.network, batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_epoch(Predictions(host(inputs).detach(), labels))
    return host


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_a_saved_host_resumes_with_its_method(make):
    whole = trained(Host(make()), 4)
    half = trained(Host(make()), 2)
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    resumed = Host(make())
    resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    trained(resumed, 2, start=2)
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, resumed.network.state_dict()[name]), name


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_method_state_is_saved_but_not_trained_by_the_host(make):
    host = trained(Host(make()), 1)
    assert {name.split(".")[0] for name, _ in host.named_parameters()} == {"network"}
    assert "calibration._extra_state" in host.state_dict()
    assert host.state_dict()["calibration._extra_state"].keys() == (
        host.calibration.method.state_dict().keys()
    )


def test_method_state_moves_with_the_host():
    host = Host(CalsAlm(K))
    host.to("meta")
    assert host.calibration.method.multipliers.device.type == "meta"
    assert host.calibration.method.multipliers.dtype == CalsAlm(K).multipliers.dtype


def test_the_state_of_another_method_is_refused():
    with pytest.raises(ValueError, match="not a state of CalsAlm"):
        Host(CalsAlm(K)).load_state_dict(Host(AdaFocal(K)).state_dict())
