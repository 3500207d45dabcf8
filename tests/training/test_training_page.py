"""The Python examples of docs/training.md run as they stand there."""

import re
from pathlib import Path

import torch

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_training_from_python_writes_a_run(tmp_path, monkeypatch, as_a_user_runs_it):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(EXAMPLES[0], names)  # noqa: S102, our own page
    assert len(names["trained"].history) == 5
    assert (tmp_path / "runs" / "mine" / "result.json").is_file()


def test_a_method_of_ones_own_trains(blobs, network, quick):
    from calibrant.training import train

    names = {}
    exec(EXAMPLES[1], names)  # noqa: S102, our own page
    trained = train(network(blobs), names["Halfway"](), blobs, quick)
    assert torch.isfinite(trained.test.logits).all()
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
