"""What is damaged: one file of every kind that calibrant reads, and how it is read."""

import gzip
import pickle
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant import Predictions, files
from calibrant.calibrators import CALIBRATORS, storage
from calibrant.data.cifar import cifar10
from calibrant.data.idx import read_idx
from calibrant.study.cell import rows_of, write_measured
from calibrant.study.folder import read_study, write_study
from calibrant.study.rows import Row
from calibrant.study.runs import Runs, read_attempts
from calibrant.study.spec import read
from calibrant.training import checkpoint
from calibrant.training.folder import read_result, write_json

SPEC = """# A comment.
name = "fuzzed"
about = "A study that is only read."
seeds = [0, 1]
calibrators = ["temperature"]
metrics = ["accuracy", "nll", "ece"]
resamples = 200

[recipe]
epochs = {epochs}
batch = 64

[[dataset]]
name = "blobs"
limit = 500

[[model]]
name = "mlp"
hidden = [16, 8]

[[method]]
name = "cross_entropy"

[[method]]
name = "focal"
gamma = 2.5
"""


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Attributes:
        write: put a file of this kind into a folder, from a seed, and return its path.
        read: what a user gets from it, as plain values and arrays.
        shape: the part of it that damage may not change unseen even where values may.
        plain: the format has no checksum, so another value is another valid file.
    """

    write: Callable[[Path, int], Path]
    read: Callable[[Path], Any]
    shape: Callable[[Any], Any] = lambda value: None
    plain: bool = False


def _predictions(seed: int) -> Predictions:
    rng = np.random.default_rng(seed)
    return Predictions(
        rng.normal(size=(40, 3)).astype(np.float32),
        rng.integers(0, 3, size=40),
        weights=rng.integers(1, 5, size=40) / 2,
        groups=rng.integers(0, 8, size=40),
    )


def _save(folder: Path, seed: int, *, suffix: str) -> Path:
    path = folder / f"predictions{suffix}"
    _predictions(seed).save(path)
    return path


def _save_by_numpy(folder: Path, seed: int) -> Path:
    path = _save(folder, seed, suffix=".npz")
    arrays = files.read(path, files.names(path))
    np.savez_compressed(path, **arrays)
    return path


def _read_predictions(path: Path) -> dict[str, Any]:
    p = Predictions.load(path)
    return {"logits": p.logits, "labels": p.labels, "weights": p.weights, "groups": p.groups}


def _columns(read: dict[str, Any]) -> Any:
    """Which arrays there are, and the number of classes."""
    return [name for name, value in read.items() if value is not None], read["logits"].shape[1]


def _save_calibrator(folder: Path, seed: int, *, tensors: bool = False) -> Path:
    inline = storage.INLINE_NUMBERS
    try:
        storage.INLINE_NUMBERS = 0 if tensors else inline
        storage.save(CALIBRATORS["matrix"].fit(_predictions(seed)), folder / "calibrator.json")
    finally:
        storage.INLINE_NUMBERS = inline
    return next(folder.glob("*.safetensors")) if tensors else folder / "calibrator.json"


def _read_calibrator(path: Path) -> dict[str, Any]:
    fitted = storage.load(path.with_name("calibrator.json"))
    return {
        "method": storage.calibrator_name(fitted),
        "classes": fitted.classes,
        **fitted.parameters,
        "origin": repr(fitted.origin),
    }


def _write_spec(folder: Path, seed: int) -> Path:
    path = folder / "study.toml"
    path.write_text(SPEC.format(epochs=3 + seed))
    return path


def _write_study(folder: Path, seed: int) -> Path:
    write_study(folder, read(_write_spec(folder, seed)))
    return folder / "study.json"


def _read_study(path: Path) -> Any:
    return read_study(path.parent).as_dict()


def _write_checkpoint(folder: Path, seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed)
    state = {"weight": torch.randn(8, 8, generator=generator), "step": 7, "names": ["a", "b"]}
    return checkpoint.save(folder, 7, {"loop": state, "identity": {"seed": seed}})


def _write_result(folder: Path, seed: int) -> Path:
    (folder / "history.jsonl").write_text('{"epoch": 0}\n')
    metrics = {"test": {"nll": 0.1 + seed, "ece": 1 / 3}, "val": {"nll": 0.25, "ece": 1e-3}}
    held = {"epochs": 3 + seed, "metrics": metrics, "class_names": ["a", "b"]}
    write_json(folder / "result.json", held)
    return folder / "result.json"


def _write_rows(folder: Path, seed: int) -> Path:
    where = ("blobs", "mlp", "sgd", "cross_entropy")
    names = ("accuracy", "nll", "ece")
    rng = np.random.default_rng(seed)
    rows = [
        Row(*where, s, "none", "test", name, *rng.random(3).tolist())
        for s in (0, 1)
        for name in names
    ]
    write_measured(folder, rows, names)
    return folder / "rows.jsonl"


def _read_rows(path: Path) -> Any:
    return [asdict(row) for row in rows_of(path.parent)]


def _write_attempts(folder: Path, seed: int) -> Path:
    runs = Runs(folder, [f"{seed:016x}"])
    for outcome in ("crashed", "released", "failed"):
        claim = runs.claim("worker")
        assert claim is not None
        claim.end(outcome, reason="why", seconds=1.5)
    return claim.folder / "attempts.json"


def _read_attempts(path: Path) -> Any:
    return [asdict(each) for each in read_attempts(path.parent)]


def _write_idx(folder: Path, seed: int, *, ending: str) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, size=(6, 10, 10), dtype=np.uint8)
    content = bytes((0, 0, 8, 3)) + np.array(pixels.shape, dtype=">u4").tobytes() + pixels.tobytes()
    path = folder / f"train-images-idx3-ubyte{ending}"
    path.write_bytes(gzip.compress(content, mtime=0) if ending else content)
    return path


def _write_cifar(folder: Path, seed: int, *, packed: bool) -> Path:
    place = folder / "cifar-10-batches-py"
    place.mkdir(exist_ok=True)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rng = np.random.default_rng([seed, i])
        # Patterns that pack well, so that damage also hits what is around the pixels.
        data = np.repeat(rng.integers(0, 256, (2, 12), dtype=np.uint8), 256, axis=1)
        batch = {b"data": data, b"labels": rng.integers(0, 10, 2).tolist(), b"batch_label": b"x"}
        (place / name).write_bytes(pickle.dumps(batch, protocol=2))
    if not packed:
        return place / "data_batch_1"
    path = folder / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(place, place.name)
    shutil.rmtree(place)
    return path


def _read_cifar(path: Path) -> Any:
    source = cifar10([path.parent if path.suffix == ".gz" else path.parents[1]])
    read = {}
    for name, part in (("train", source.train), ("test", source.test)):
        read |= {name: part.inputs(np.arange(len(part))), f"{name} labels": part.labels}
    return read


def _sizes(read: dict[str, Any]) -> Any:
    return {name: tuple(value.shape) for name, value in read.items()}


TARGETS: dict[str, Target] = {
    "predictions.npz": Target(partial(_save, suffix=".npz"), _read_predictions),
    "predictions.npz (numpy, compressed)": Target(_save_by_numpy, _read_predictions),
    "predictions.parquet": Target(partial(_save, suffix=".parquet"), _read_predictions),
    "predictions.safetensors": Target(partial(_save, suffix=".safetensors"), _read_predictions),
    "predictions.csv": Target(partial(_save, suffix=".csv"), _read_predictions, _columns, True),
    "calibrator.json": Target(_save_calibrator, _read_calibrator),
    "calibrator tensors": Target(partial(_save_calibrator, tensors=True), _read_calibrator),
    "study.toml": Target(_write_spec, lambda path: read(path).as_dict(), plain=True),
    "study.json": Target(_write_study, _read_study),
    "rows.jsonl": Target(_write_rows, _read_rows),
    "attempts.json": Target(_write_attempts, _read_attempts),
    "checkpoint": Target(_write_checkpoint, checkpoint.load),
    "result.json": Target(_write_result, lambda path: read_result(path.parent)),
    "idx": Target(
        partial(_write_idx, ending=""), lambda p: read_idx(p, dimensions=3), np.shape, True
    ),
    "idx.gz": Target(partial(_write_idx, ending=".gz"), lambda path: read_idx(path, dimensions=3)),
    "cifar pickle": Target(partial(_write_cifar, packed=False), _read_cifar, _sizes, True),
    "cifar tar.gz": Target(partial(_write_cifar, packed=True), _read_cifar),
}
