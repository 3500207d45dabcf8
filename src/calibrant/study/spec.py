"""Read a study from a TOML file; whatever can be checked before a training is checked here."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.calibrators.registry import CALIBRATORS
from calibrant.data.options import OPTION_NAMES, Options
from calibrant.data.shifts import SHIFTS
from calibrant.files.checks import one_line
from calibrant.methods import build
from calibrant.metrics import METRICS
from calibrant.setting_errors import did_you_mean
from calibrant.study.grid import Cell, Choice, Study
from calibrant.study.spec_checks import check_grid, refused
from calibrant.study.spec_settings import (
    FREE,
    NAMES,
    PARTS,
    Fields,
    Part,
    family_name,
    fields_of,
    is_code,
    plain,
    probe_fields,
    recipe_fields,
)
from calibrant.study.spec_tables import checked, shown
from calibrant.study.spec_text import load, overridden
from calibrant.training.probing import Probing

__all__ = ["Cell", "Choice", "Study", "parse", "read"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
LONGEST_LABEL = 80
LARGEST_SEED = 2**63 - 1
# Of every study that does not say otherwise.
DEFAULTS: dict[str, Any] = {
    "about": "",
    "seeds": [0],
    "calibrators": ["temperature", "focal_temperature"],
    "metrics": [
        "accuracy",
        "nll",
        "brier",
        "ece",
        "adaptive_ece",
        "classwise_ece",
        "sece",
        "smece",
    ],
    "resamples": 300,
    "shifts": [],
    "recipe": {},
    "optimizer": [{"name": "sgd"}],
}
STUDY: Fields = {
    "name": (str, ""),
    "about": (str, ""),
    "seeds": (list[int], []),
    "calibrators": (list[str], []),
    "metrics": (list[str], []),
    "resamples": (int, 0),
    "shifts": (list[str], []),
    "recipe": (dict[str, Any], {}),
    "probe": (dict[str, Any], {}),
    **{part: (list[dict[str, Any]], []) for part in PARTS},
}
# More only take time: the ends of an interval are known to three digits long before.
MOST_RESAMPLES = 100_000
# A number of classes with which the settings of methods are tried.
CLASSES = 10


def read(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    allow_code: Sequence[str] = (),
    many: bool = False,
) -> Study:
    """Read a study and check all of it; no data are loaded and no network is built.

    Args:
        path: a TOML file of at most 1 MB.
        overrides: `place=value` with a value as TOML writes it, such as `recipe.epochs=5`,
            `seeds=[0]` or `dataset[0].limit=500`; they replace what the file says.
        allow_code: paths `package.module:factory` of models that the file may name. A file alone
            cannot make code run.
        many: allow more than 10,000 cells.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: one line with the place in the file, what must hold, and what came.
    """
    given = {"optimizer": DEFAULTS["optimizer"], **load(path)}
    whole = overridden(given, overrides)
    try:
        return parse(whole, allow_code=allow_code, many=many)
    except ValueError as error:
        # With overrides it may be one of them that is wrong.
        raise ValueError(str(error) if overrides else f"{path}: {error}") from None


def parse(given: Mapping[str, Any], *, allow_code: Sequence[str] = (), many: bool = False) -> Study:
    """Make a study of plain values in the shape of a file; options as in `read`.

    >>> one = {"name": "blobs"}, {"name": "mlp"}, {"name": "focal", "gamma": 2}
    >>> tables = dict(zip(("dataset", "model", "method"), ([each] for each in one)))
    >>> study = parse({"name": "small", "seeds": [0, 1], **tables})
    >>> [cell.label for cell in study.cells()]
    ['blobs, mlp, sgd, focal gamma=2, seed 0', 'blobs, mlp, sgd, focal gamma=2, seed 1']
    """
    top = {**DEFAULTS, **checked("", dict(given), STUDY, required=["name"])}
    _check_top(top)
    recipe = _recipe("recipe", top["recipe"])
    axes = {
        part: tuple(
            _choice(part, f"{part}[{index}]", each, allow_code)
            for index, each in enumerate(top.get(part, []))
        )
        for part in PARTS
    }
    study = Study(
        name=top["name"],
        about=top["about"],
        seeds=tuple(top["seeds"]),
        calibrators=tuple(top["calibrators"]),
        metrics=tuple(top["metrics"]),
        resamples=top["resamples"],
        recipe=recipe,
        shifts=tuple(top["shifts"]),
        probe=None if "probe" not in top else _probe(top["probe"]),
        **axes,
    )
    check_grid(study, many=many)
    return study


def _check_top(top: Mapping[str, Any]) -> None:
    """Refuse values at the head of a file that have the right type and still mean nothing."""
    name = top["name"]
    if not NAME.fullmatch(name):
        raise ValueError(f"name: expected {NAME.pattern}, got {shown(name)}")
    if DEVICE.fullmatch(name):
        raise ValueError(f"name: {name!r} is a device on Windows; choose another")
    for index, seed in enumerate(top["seeds"]):
        if not 0 <= seed <= LARGEST_SEED:
            raise ValueError(
                f"seeds[{index}]: must be at least 0 and below 2**63, got {shown(seed)}"
            )
    if not 1 <= top["resamples"] <= MOST_RESAMPLES:
        raise ValueError(
            f"resamples: must be from 1 to {MOST_RESAMPLES:,}, got {shown(top['resamples'])}"
        )
    for key, known in (
        ("calibrators", CALIBRATORS),
        ("metrics", METRICS),
        ("shifts", SHIFTS),
    ):
        for index, each in enumerate(top[key]):
            _check_name(f"{key}[{index}]", key.removesuffix("s"), each, known)
    if not top["metrics"]:
        raise ValueError("metrics: must name at least one")
    for key in ("seeds", "calibrators", "metrics", "shifts"):
        seen: dict[Any, int] = {}
        for index, each in enumerate(top[key]):
            if seen.setdefault(each, index) < index:
                raise ValueError(f"{key}[{index}]: {each} again, as {key}[{seen[each]}]")


def _check_name(path: str, what: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise ValueError(f"{path}: no {what} {shown(name)}; {did_you_mean(name[:60], known)}")


def _choice(part: Part, path: str, given: dict[str, Any], allow_code: Sequence[str]) -> Choice:
    """One entry of the file, checked as far as it can be on its own."""
    frame: Fields = {"name": (str, ""), "label": (str, "")}
    if part != "optimizer":
        frame["recipe"] = (dict[str, Any], {})
    if "name" in given:
        name = checked(path, {"name": given["name"]}, frame)["name"]
        _check_member(part, f"{path}.name", name, allow_code)
        known = fields_of(part, name)
        own = {key: (FREE, None) for key in given} if known is None else known
        frame = {**own, **frame}
    read = checked(path, given, frame, required=["name"])
    settings = {key: value for key, value in read.items() if key not in ("name", "label", "recipe")}
    recipe = _recipe(f"{path}.recipe", read.get("recipe", {}))
    name, label = read["name"], read.get("label", "")
    if "label" in read and not (
        label.strip() and label.isprintable() and len(label) <= LONGEST_LABEL
    ):
        raise ValueError(
            f"{path}.label: expected one line of 1 to {LONGEST_LABEL} characters, "
            f"got {shown(label)}"
        )
    _check_values(part, path, name, settings)
    return Choice(name, settings, label or _label(name, settings), recipe)


def _recipe(path: str, given: dict[str, Any]) -> dict[str, Any]:
    if "optimizer" in given:
        raise ValueError(f"{path}.optimizer: optimizers have tables of their own, [[optimizer]]")
    return checked(path, given, recipe_fields())


def _probe(given: dict[str, Any]) -> dict[str, Any]:
    settings = checked("probe", given, probe_fields())
    try:
        Probing(settings)
    except ValueError as error:
        raise ValueError(f"probe: {error}") from None
    return settings


def _check_member(part: Part, path: str, name: str, allow_code: Sequence[str]) -> None:
    if part == "model" and is_code(name):
        if name not in allow_code:
            raise ValueError(
                f"{path}: {shown(name)} is code, and a file alone may not run any; "
                f"name it outside of the file as well (--allow-code {name})"
            )
        return
    if part == "dataset" and name in ("hf", "hf:"):
        raise ValueError(f"{path}: write the name of the set after hf:, such as hf:ag_news")
    _check_name(path, part, family_name(part, name), NAMES[part])


def _check_values(part: Part, path: str, name: str, settings: dict[str, Any]) -> None:
    """Try the values as far as that needs neither data nor networks."""
    try:
        if part == "dataset":
            Options(**{key: each for key, each in settings.items() if key in OPTION_NAMES})
        if part == "method":
            build(name, classes=CLASSES, **settings)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(refused(error, {key: f"{path}.{key}" for key in settings}, path)) from None


def _label(name: str, settings: Mapping[str, Any]) -> str:
    """Name and settings, in the order of the file."""
    said = [f"{key}={_word(plain(each))}" for key, each in settings.items()]
    return one_line(" ".join([name, *said]), LONGEST_LABEL)


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
