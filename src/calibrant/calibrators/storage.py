"""Calibrators in files: JSON to read and to mail, with large tensors in a file beside it.

A file is read as if a stranger had written it: nothing in it can run code, name a path or ask for
more memory than it brings.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from calibrant import __version__, files
from calibrant.calibrators import records
from calibrant.calibrators.base import Calibrator, Fit
from calibrant.calibrators.family import CALIBRATORS
from calibrant.calibrators.records import check_file, check_keys, meant, short, typed
from calibrant.extras import need
from calibrant.files.atomic import replacing
from calibrant.files.checks import human, one_line

FORMAT, SCHEMA = "calibrant calibrator", 1
KEYS = ("format", "schema", "calibrant", "method", "classes", "parameters", "fit")
# Parameters that would take more than 1 MB as JSON, 20 bytes a number, go to a file of tensors.
INLINE_NUMBERS = 2**20 // 20
# The rest of a file is a few lines, so anything much longer is none of ours.
MAX_BYTES = 4 * 2**20
# Most that a file of tensors may hold: a matrix for 10,000 classes.
MAX_TENSOR_BYTES = 2**30
MAX_CLASSES = 10**6
DTYPES = {"float64": torch.float64, "int64": torch.int64}


def save(calibrator: Calibrator, path: str | Path) -> None:
    """Write a calibrator as JSON; all numbers come back bit by bit.

    Tensors of more than 1 MB are written first, to a file beside it whose name holds its own
    digest, so that neither an older file nor anyone's data is overwritten. Both writes are whole
    or not at all, and the JSON comes last: a file that can be seen can be loaded.
    """
    path = Path(path)
    method = method_of(calibrator)
    if path.suffix.lower() != ".json":
        raise ValueError(f"cannot write {path}: calibrators are saved as .json")
    given = dict(calibrator.parameters)
    for name, value in given.items():
        if not _finite(value):
            raise ValueError(f"cannot save {method}: {name} holds numbers that are not finite")
    large = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    inline = sum(value.numel() for value in large.values()) <= INLINE_NUMBERS
    record: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "calibrant": __version__,
        "method": method,
        "classes": calibrator.classes,
        "parameters": {name: _encoded(value, inline=inline) for name, value in given.items()},
        "fit": None if calibrator.origin is None else _fit_record(calibrator.origin),
    }
    if not inline:
        record["tensors"] = _write_tensors(path, large)
    text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)
    with replacing(path) as handle:
        handle.write(_rows_on_a_line(text).encode() + b"\n")


def load(path: str | Path) -> Calibrator:
    """Read a calibrator that `save` wrote.

    Raises:
        ValueError: the file is damaged, of another kind or schema, or does not fit together.
        OSError: the file is absent or cannot be opened.
    """
    path = Path(path)
    try:
        return _calibrator(path, records.parsed(path, max_bytes=MAX_BYTES))
    except ValueError as error:
        text = one_line(error, 400)
        raise ValueError(text if str(path) in text else f"{path}: {text}") from None


def method_of(calibrator: Calibrator) -> str:
    """Name of a calibrator in `CALIBRATORS`."""
    for name, kind in CALIBRATORS.items():
        if type(calibrator) is kind:
            return name
    raise ValueError(
        f"{type(calibrator).__name__} is not in CALIBRATORS, so no file could name it; "
        f"it holds {', '.join(CALIBRATORS)}"
    )


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(value.isfinite().all())
    return not isinstance(value, float) or math.isfinite(value)


def _encoded(value: Any, *, inline: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    names = {dtype: name for name, dtype in DTYPES.items()}
    record: dict[str, Any] = {"dtype": names[value.dtype], "shape": list(value.shape)}
    if inline:
        record["values"] = value.flatten().tolist()
    return record


def _fit_record(fit: Fit) -> dict[str, Any]:
    record = asdict(fit)
    # JSON has neither NaN nor infinity.
    record["gradient_norm"] = fit.gradient_norm if math.isfinite(fit.gradient_norm) else None
    return record


def _rows_on_a_line(text: str) -> str:
    """Join the lines of every list: `indent` would give every number a line of its own."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        bare = line.lstrip()
        # Strings end with a quote, so a line that ends with a bracket opens a list.
        if not inside:
            lines.append(line)
        elif lines[-1].endswith("[") or bare.startswith("]"):
            lines[-1] += bare
        else:
            lines[-1] += f" {bare}"
        inside = lines[-1].endswith("[") or (inside and not bare.startswith("]"))
    return "\n".join(lines)


def _write_tensors(path: Path, given: Mapping[str, Tensor]) -> dict[str, str]:
    library = need("safetensors.numpy", extra="audit", what="saving a large calibrator")
    arrays = {key: np.ascontiguousarray(tensor.cpu().numpy()) for key, tensor in given.items()}
    content: bytes = library.save(arrays)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{path.stem}.{digest[:16]}.safetensors"
    with replacing(path.with_name(name)) as handle:
        handle.write(content)
    return {"file": name, "sha256": digest}


def _calibrator(path: Path, record: Any) -> Calibrator:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f'not a calibrator\'s file: no "format": "{FORMAT}"')
    schema = typed("schema", record.get("schema"), int)
    if schema != SCHEMA:
        raise ValueError(
            f"written with schema {schema}, this calibrant reads {SCHEMA}: install the calibrant "
            f"that wrote it, {short(record.get('calibrant'))}"
        )
    check_keys("the file", record, KEYS, optional=("tensors",))
    method = typed("method", record["method"], str)
    if method not in CALIBRATORS:
        raise ValueError(f"no method {short(method)}{meant(method, CALIBRATORS)}")
    classes = typed("classes", record["classes"], int)
    if not 2 <= classes <= MAX_CLASSES:
        raise ValueError(f"classes must lie in [2, {MAX_CLASSES:,}], got {short(classes)}")
    kind = CALIBRATORS[method]
    given = typed("parameters", record["parameters"], dict)
    names = [each.name for each in fields(kind) if each.name not in ("classes", "origin")]
    check_keys("parameters", given, names)
    loaded = _read_tensors(path, record["tensors"], given) if "tensors" in record else {}
    hints = get_type_hints(kind)
    values = {name: _decoded(name, given[name], hints[name], loaded.get(name)) for name in names}
    return _made(kind, classes, values, _fit(record["fit"]))


def _made(
    kind: type[Calibrator], classes: int, values: Mapping[str, Any], origin: Fit | None
) -> Calibrator:
    """Make the calibrator, and use it once: parameters that do not fit together show then."""
    try:
        calibrator = kind(classes=classes, origin=origin, **values)
        out = calibrator(torch.zeros(2, classes, dtype=torch.float64))
    except (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"parameters do not fit: {one_line(error)}") from None
    if out.shape != (2, classes) or bool(out.isnan().any()):
        raise ValueError("parameters do not fit: they give no probabilities")
    return calibrator


def _decoded(
    name: str, value: Any, hint: Any, loaded: np.ndarray | None
) -> float | int | str | Tensor:
    where = f"parameters.{name}"
    if hint is float:
        number = float(typed(where, value, float))
        if not math.isfinite(number):
            raise ValueError(f"{where} must be finite, got {number}")
        return number
    if hint in (int, str, bool):
        plain: int | str = typed(where, value, hint)
        return plain
    return _tensor(where, value, loaded)


def _tensor(where: str, value: Any, loaded: np.ndarray | None) -> Tensor:
    record = typed(where, value, dict)
    check_keys(where, record, ("dtype", "shape") + (() if loaded is not None else ("values",)))
    dtype = typed(f"{where}.dtype", record["dtype"], str)
    if dtype not in DTYPES:
        raise ValueError(f"{where}.dtype must be one of {', '.join(DTYPES)}, got {short(dtype)}")
    sizes = typed(f"{where}.shape", record["shape"], list)
    if len(sizes) > 4 or not all(type(size) is int and 0 <= size < 2**40 for size in sizes):
        raise ValueError(f"{where}.shape must be up to 4 sizes, got {short(sizes)}")
    if loaded is not None:
        if loaded.dtype.name != dtype or list(loaded.shape) != sizes:
            raise ValueError(
                f"{where} says {dtype} {sizes}, its file holds {loaded.dtype} {list(loaded.shape)}"
            )
        tensor = torch.from_numpy(loaded)
    else:
        numbers = typed(f"{where}.values", record["values"], list)
        if len(numbers) != math.prod(sizes):
            raise ValueError(
                f"{where} has {len(numbers)} values, shape {sizes} needs another count"
            )
        # A whole number in a list of floats would lose digits without a word.
        single = float if dtype == "float64" else int
        for number in numbers:
            typed(f"{where}.values", number, single)
        try:
            tensor = torch.tensor(numbers, dtype=DTYPES[dtype]).reshape(sizes)
        except (RuntimeError, OverflowError, ValueError):
            raise ValueError(f"{where}: a value is out of range for {dtype}") from None
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{where} must hold finite numbers only")
    return tensor


def _read_tensors(path: Path, record: Any, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    check_keys("tensors", typed("tensors", record, dict), ("file", "sha256"))
    name = typed("tensors.file", record["file"], str)
    plain = name == PurePosixPath(name).name == PureWindowsPath(name).name and name.isprintable()
    if not plain or not name.endswith(".safetensors"):
        raise ValueError(
            f"tensors.file must be the name of a .safetensors file in the same folder, "
            f"got {short(name)}"
        )
    beside = path.with_name(name)
    check_file(beside)
    if beside.stat().st_size > MAX_TENSOR_BYTES:
        raise ValueError(f"{beside}: more than {human(MAX_TENSOR_BYTES)}")
    with open(beside, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if digest != record["sha256"]:
        raise ValueError(
            f"{beside} is not the file that {path.name} was saved with: sha256 differs"
        )
    wanted = [name for name, value in given.items() if isinstance(value, dict)]
    return files.read(beside, wanted, max_bytes=MAX_TENSOR_BYTES)


def _fit(record: Any) -> Fit | None:
    if record is None:
        return None
    check_keys("fit", typed("fit", record, dict), [each.name for each in fields(Fit)])
    gradient = record["gradient_norm"]
    sha256 = typed("fit.sha256", record["sha256"], str)
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ValueError(f"fit.sha256 must be 64 hexadecimal digits, got {short(sha256)}")
    return Fit(
        examples=typed("fit.examples", record["examples"], int),
        sha256=sha256,
        converged=typed("fit.converged", record["converged"], bool),
        gradient_norm=(
            math.nan if gradient is None else float(typed("fit.gradient_norm", gradient, float))
        ),
        remark=one_line(typed("fit.remark", record["remark"], str), 1000),
    )
