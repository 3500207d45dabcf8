"""Save and load calibrators: JSON, with large tensors in a file next to it.

Files are treated as untrusted input: nothing in them can run code, name a path or ask for more
memory than they bring.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from calibrant import __version__, files
from calibrant.advice import InputError, located
from calibrant.calibrators import (
    fit_records,
    multicalibration_records,
    records,
    sliced_records,
)
from calibrant.calibrators.base import Calibrator, parameter_names
from calibrant.calibrators.blend import MOST_PARTS, Blend
from calibrant.calibrators.multi_label import MultiLabelCalibrator
from calibrant.calibrators.multicalibration import MultiCalibrator
from calibrant.calibrators.prior_shift import PriorShift
from calibrant.calibrators.records import DIGEST, check_keys, digest_of, short, typed
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.sliced import SlicedCalibrator
from calibrant.extras import need
from calibrant.files.atomic import replacing
from calibrant.files.checks import check_file, human, one_line
from calibrant.scoped_warnings import warn
from calibrant.setting_errors import did_you_mean

# Files of schema 1 have no digest. Both schemas have the name of the calibrator under "method".
FORMAT, SCHEMA, UNSIGNED = "calibrant calibrator", 2, 1
KEYS = ("format", "schema", "calibrant", "method", "classes", "parameters", "fit")
# A blend is not in CALIBRATORS; its parts are, and have these keys.
BLEND, PART = "blend", ("method", "parameters", "fit")
# Numbers for each part; files of earlier releases have none, which is a plain mean.
POOLS = ("weights", "exponents")
# Nor is one that needs columns; that of all its examples is. Labels are slices.
SLICED, MULTI_LABEL, MULTICALIBRATION = "sliced", "multi_label", "multicalibration"
BY_COLUMNS: dict[str, Any] = {
    SLICED: sliced_records,
    MULTI_LABEL: sliced_records,
    MULTICALIBRATION: multicalibration_records,
}
OVERALL = "overall"
# Nor is a change of priors; the calibrator inside is, or is a blend.
PRIOR_SHIFT, INSIDE, PRIORS = "prior_shift", "calibrator", ("source", "target")
COMPOSED: dict[str, type] = {
    BLEND: Blend,
    SLICED: SlicedCalibrator,
    MULTI_LABEL: MultiLabelCalibrator,
    MULTICALIBRATION: MultiCalibrator,
    PRIOR_SHIFT: PriorShift,
}
# Parameters that take more than 1 MB as JSON, 20 bytes a number, go to a tensor file.
INLINE_NUMBERS = 2**20 // 20
# The rest of a file is a few lines.
MAX_BYTES = 4 * 2**20
OfColumns = SlicedCalibrator | MultiCalibrator
Saved = Calibrator | OfColumns | MultiLabelCalibrator
# What a calibrator may raise that has invalid parameters.
INVALID = (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError)
# Largest tensor file: a matrix for 10,000 classes.
MAX_TENSOR_BYTES = 2**30
MAX_CLASSES = 10**6
# Logits to which a calibrator is applied once: their sizes, besides the smallest normal number of
# each dtype, and the number of classes up to which all are used.
PROBED_SIZES, PROBED_CLASSES = (1.0, 1e4, 1e30), 1000


def save(calibrator: Saved, path: str | Path) -> None:
    """Write a calibrator as JSON with its digest; parameters are restored bit by bit.

    Tensors of more than 1 MB are written first, to a file next to it whose name contains its own
    digest, so that no other file is overwritten. Both writes are atomic.
    """
    path = Path(path)
    name = calibrator_name(calibrator)
    if isinstance(calibrator, MultiLabelCalibrator):
        calibrator = calibrator.sliced
    if path.suffix.lower() != ".json":
        raise ValueError(f"cannot write {path}: calibrators are saved as .json")
    for part in _distinct_parts(calibrator):
        try:
            check_probabilities(part)
        except ValueError as error:
            raise ValueError(
                f"cannot save {calibrator_name(part)}: {error}; rescale the logits and fit again"
            ) from None
    tensors = _tensors(calibrator)
    inline = sum(value.numel() for value in tensors.values()) <= INLINE_NUMBERS
    record: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "calibrant": __version__,
        "method": name,
        "classes": calibrator.classes,
        **(_record(calibrator, inline=inline) | {"method": name}),
    }
    if not inline:
        record["tensors"] = _write_tensors(path, tensors)
    record[DIGEST] = digest_of(record)
    content = records.text_of(record).encode()
    if len(content) > MAX_BYTES:
        raise ValueError(f"cannot write {path}: more than {human(MAX_BYTES)} of names")
    with replacing(path) as handle:
        handle.write(content)


def _distinct_parts(calibrator: Calibrator | OfColumns) -> tuple[Calibrator, ...]:
    """The calibrators to check: the parts of a blend, or those of slices, each once."""
    if isinstance(calibrator, MultiCalibrator):
        return (calibrator.overall,)
    if isinstance(calibrator, SlicedCalibrator):
        return tuple(dict.fromkeys((calibrator.overall, *calibrator.calibrators)))
    return calibrator.parts if isinstance(calibrator, Blend) else (calibrator,)


def _tensors(calibrator: Calibrator | OfColumns) -> dict[str, Tensor]:
    """Tensors by their names in a tensor file."""
    parts: dict[str, Calibrator] = {}
    own: dict[str, Tensor]
    if isinstance(calibrator, OfColumns):
        own = BY_COLUMNS[calibrator_name(calibrator)].tensors_of(calibrator)
        parts[OVERALL] = calibrator.overall
    else:
        values = calibrator.parameters.items()
        own = {name: value for name, value in values if isinstance(value, Tensor)}
    if isinstance(calibrator, Blend):
        parts = {str(at): part for at, part in enumerate(calibrator.parts)}
    elif isinstance(calibrator, PriorShift):
        parts[INSIDE] = calibrator.calibrator
    return own | {
        f"{at}.{key}": value for at, part in parts.items() for key, value in _tensors(part).items()
    }


def load(path: str | Path) -> Saved:
    """Read a calibrator that `save` wrote; schema 1, which has no digest, gives a warning.

    Raises:
        ValueError: the file was changed or damaged, is of another kind or schema, or its
            parameters are invalid.
        OSError: the file does not exist or cannot be opened.
    """
    path = Path(path)
    try:
        return _calibrator(path, records.parsed(path, max_bytes=MAX_BYTES))
    except InputError as error:
        raise located(path, error) from None
    except ValueError as error:
        text = one_line(error, 400)
        raise ValueError(text if str(path) in text else f"{path}: {text}") from None


def calibrator_name(calibrator: Saved) -> str:
    """Name of a calibrator in `CALIBRATORS`, or of one that consists of others in `COMPOSED`."""
    for name, kind in {**CALIBRATORS, **COMPOSED}.items():
        if type(calibrator) is kind:
            return name
    raise ValueError(
        f"{type(calibrator).__name__} is not in CALIBRATORS and cannot be saved; "
        f"expected one of {', '.join(CALIBRATORS)}"
    )


def _record(calibrator: Calibrator | OfColumns, *, inline: bool) -> dict[str, Any]:
    if isinstance(calibrator, Blend):
        given: dict[str, Any] = {"parts": [_record(p, inline=inline) for p in calibrator.parts]}
        given |= {name: list(getattr(calibrator, name)) for name in POOLS}
    elif isinstance(calibrator, OfColumns):
        given = BY_COLUMNS[calibrator_name(calibrator)].encoded(calibrator, inline=inline)
        given[OVERALL] = _record(calibrator.overall, inline=inline)
    else:
        values = calibrator.parameters.items()
        given = {
            name: _record(value, inline=inline)
            if isinstance(value, Calibrator)
            else records.encoded(value, inline=inline)
            for name, value in values
        }
    fit = fit_records.encoded(calibrator.origin)
    return {"method": calibrator_name(calibrator), "parameters": given, "fit": fit}


def _write_tensors(path: Path, given: Mapping[str, Tensor]) -> dict[str, str]:
    library = need("safetensors.numpy", extra="audit", what="saving a large calibrator")
    arrays = {key: np.ascontiguousarray(tensor.cpu().numpy()) for key, tensor in given.items()}
    content: bytes = library.save(arrays)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{path.stem}.{digest[:16]}.safetensors"
    with replacing(path.with_name(name)) as handle:
        handle.write(content)
    return {"file": name, "sha256": digest}


def _calibrator(path: Path, record: Any) -> Saved:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise records.other_file(f'no "format": "{FORMAT}"')
    _check_digest(path, record)
    classes = typed("classes", record["classes"], int)
    if not 2 <= classes <= MAX_CLASSES:
        raise ValueError(f"classes must lie in [2, {MAX_CLASSES:,}], got {short(classes)}")
    parts = _parts(record)
    loaded = _read_tensors(path, record["tensors"], parts) if "tensors" in record else {}
    if record["method"] in BY_COLUMNS:
        found = _of_columns(
            record, _part(f"{OVERALL}.", parts[f"{OVERALL}."], classes, loaded), loaded
        )
        return MultiLabelCalibrator(found) if record["method"] == MULTI_LABEL else found
    if record["method"] == PRIOR_SHIFT:
        return _prior_shift(record, parts, classes, loaded)
    return _plain(record, parts, classes, loaded)


def _plain(
    record: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Any]],
    classes: int,
    loaded: Mapping[str, np.ndarray],
) -> Calibrator:
    """Make a calibrator, or a blend of calibrators."""
    made = tuple(_part(at, part, classes, loaded) for at, part in parts.items())
    if record["method"] != BLEND:
        return made[0]
    given = record["parameters"]
    pools = {
        name: tuple(float(typed(name, each, float)) for each in typed(name, given[name], list))
        for name in POOLS
        if name in given
    }
    origin = fit_records.decoded(record["fit"], classes)
    return Blend(classes=classes, parts=made, origin=origin, **pools)


def _prior_shift(
    record: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Any]],
    classes: int,
    loaded: Mapping[str, np.ndarray],
) -> PriorShift:
    """Make a change of priors, and apply it once to check its parameters."""
    given = record["parameters"]
    inner = {at: part for at, part in parts.items() if at}
    priors = {
        name: records.decoded(f"parameters.{name}", given[name], Tensor, loaded.get(name))
        for name in PRIORS
    }
    try:
        shift = PriorShift(
            classes=classes,
            calibrator=_plain(given[INSIDE], inner, classes, loaded),
            origin=fit_records.decoded(record["fit"], classes),
            **priors,
        )
    except INVALID as error:
        raise ValueError(f"invalid parameters: {one_line(error)}") from None
    check_probabilities(shift)
    return shift


def _of_columns(
    record: Mapping[str, Any], overall: Calibrator, loaded: Mapping[str, np.ndarray]
) -> Any:
    """Make a calibrator of columns, and apply that of each slice once to check its parameters."""
    try:
        found = BY_COLUMNS[record["method"]].decoded(record["parameters"], overall, loaded)
    except INVALID as error:
        raise ValueError(f"invalid parameters: {one_line(error)}") from None
    for part in _distinct_parts(found)[1:]:
        check_probabilities(part)
    return found


def _check_digest(path: Path, record: Mapping[str, Any]) -> None:
    schema = typed("schema", record.get("schema"), int)
    if schema not in (UNSIGNED, SCHEMA):
        raise ValueError(
            f"written with schema {schema}, this calibrant reads {UNSIGNED} and {SCHEMA}: install "
            f"the calibrant that wrote it, {short(record.get('calibrant'))}"
        )
    signed = () if schema == UNSIGNED else (DIGEST,)
    check_keys("the file", record, (*KEYS, *signed), optional=("tensors",))
    if not signed:
        warn(
            f"{path}: schema {UNSIGNED} has no digest, so changes are not detected; "
            "load and save it to add one",
            stacklevel=4,
        )
    elif record[DIGEST] != digest_of(record):
        raise ValueError(
            f"{DIGEST} differs: the file was changed after it was saved; restore it, or make the "
            "calibrator in Python and save it"
        )


def _parts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Check the records of all parts; returns them by the prefix of their tensors."""
    if typed("method", record["method"], str) not in COMPOSED:
        _check_part("", record, [*CALIBRATORS, *COMPOSED])
        return {"": record}
    given = typed("parameters", record["parameters"], dict)
    if record["method"] == PRIOR_SHIFT:
        check_keys("parameters", given, (*PRIORS, INSIDE))
        inner = typed(INSIDE, given[INSIDE], dict)
        check_keys(INSIDE, inner, PART)
        if inner["method"] in (*BY_COLUMNS, PRIOR_SHIFT):
            raise ValueError(f"{INSIDE}: {inner['method']} cannot be inside {PRIOR_SHIFT}")
        parts = {f"{INSIDE}.{at}": part for at, part in _parts(inner).items()}
        return {"": {"parameters": {name: given[name] for name in PRIORS}}, **parts}
    if record["method"] in BY_COLUMNS:
        kind = BY_COLUMNS[record["method"]]
        check_keys("parameters", given, (*kind.PLAIN, *kind.TENSORS, OVERALL))
        check_keys(OVERALL, typed(OVERALL, given[OVERALL], dict), PART)
        _check_part(f"{OVERALL}: ", given[OVERALL], kind.INSIDE, only=True)
        tensors = {name: given[name] for name in kind.TENSORS}
        return {f"{OVERALL}.": given[OVERALL], "": {"parameters": tensors}}
    check_keys("parameters", given, ("parts",), optional=POOLS)
    parts = typed("parameters.parts", given["parts"], list)
    if not 1 <= len(parts) <= MOST_PARTS:
        raise ValueError(f"a blend has 1 to {MOST_PARTS} parts, got {len(parts)}")
    for at, part in enumerate(parts):
        check_keys(f"part {at}", typed(f"part {at}", part, dict), PART)
        _check_part(f"part {at}: ", part, CALIBRATORS)
    return {f"{at}.": part for at, part in enumerate(parts)}


def _check_part(
    where: str, record: Mapping[str, Any], known: Iterable[str], *, only: bool = False
) -> None:
    name = typed(f"{where}method", record["method"], str)
    if name not in CALIBRATORS or (only and name not in known):
        raise ValueError(f"{where}no calibrator {short(name)}; {did_you_mean(name, known)}")
    given = typed(f"{where}parameters", record["parameters"], dict)
    check_keys(f"{where}parameters", given, parameter_names(CALIBRATORS[name]))


def _part(
    at: str, record: Mapping[str, Any], classes: int, loaded: Mapping[str, np.ndarray]
) -> Calibrator:
    """Make a calibrator, and apply it once to check its parameters."""
    kind, given = CALIBRATORS[record["method"]], record["parameters"]
    where = f"part {at[:-1]}: parameters" if at else "parameters"
    hints = get_type_hints(kind)
    values = {
        name: records.decoded(f"{where}.{name}", given[name], hints[name], loaded.get(at + name))
        for name in parameter_names(kind)
    }
    origin = fit_records.decoded(record["fit"], classes)
    try:
        calibrator = kind(classes=classes, origin=origin, **values)
    except INVALID as error:
        raise ValueError(f"invalid parameters: {one_line(error)}") from None
    check_probabilities(calibrator)
    return calibrator


def check_probabilities(calibrator: Calibrator) -> None:
    """Refuse inconsistent parameters, or parameters that overflow to NaN.

    Applies the calibrator in float32 and float64 to logits of every size: one class above or
    below all others, all classes different in both orders, all equal, and one class masked.
    A calibrator without parameters for each class is applied to fewer classes, so that a small
    file cannot ask for much memory.
    """
    classes = min(calibrator.classes, max(PROBED_CLASSES, calibrator.size))
    calibrator = replace(calibrator, classes=classes)
    for dtype in (torch.float32, torch.float64):
        rows = torch.zeros(6, classes, dtype=dtype)
        rows[0, 0], rows[1, -1] = 1, -1
        rows[2] = torch.linspace(-1, 1, classes, dtype=dtype)
        rows[3] = rows[5] = -rows[2]
        for size in (torch.finfo(dtype).tiny, *PROBED_SIZES):
            given = rows * size
            given[5, -1] = -torch.inf
            try:
                out = calibrator(given)
                total = out.double().exp().sum(1)
            except INVALID as error:
                raise ValueError(f"invalid parameters: {one_line(error)}") from None
            # Written so that NaN fails.
            if out.shape != given.shape or not bool(((total - 1).abs() <= 1e-3).all()):
                name = str(dtype).removeprefix("torch.")
                raise ValueError(
                    f"invalid parameters: no probabilities for {name} logits of size {size:g}"
                )


def _read_tensors(
    path: Path, record: Any, parts: Mapping[str, Mapping[str, Any]]
) -> dict[str, np.ndarray]:
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
    names = [
        f"{at}{name}"
        for at, part in parts.items()
        for name, value in part["parameters"].items()
        if isinstance(value, dict)
    ]
    return files.read(beside, names, max_bytes=MAX_TENSOR_BYTES)
