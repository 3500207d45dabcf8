"""Read a study from a TOML file; whatever can be checked before a training is checked here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.extras import need
from calibrant.files.checks import one_line
from calibrant.study.grid import Cell, Choice, Study
from calibrant.study.spec_checks import check_grid
from calibrant.study.spec_settings import LONGEST_LABEL, PARTS, is_code, plain
from calibrant.study.spec_text import load, overridden

__all__ = ["Cell", "Choice", "Study", "parse", "read"]

# Of a study that names none.
OPTIMIZER = [{"name": "sgd"}]


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
        many: allow more than 10,000 runs.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: one line with the place in the file, what must hold, and what came.
    """
    whole = overridden({"optimizer": OPTIMIZER, **load(path)}, overrides)
    try:
        return parse(whole, allow_code=allow_code, many=many)
    except ValueError as error:
        # With overrides it may be one of them that is wrong.
        raise ValueError(f"{error}" if overrides else f"{path}: {error}") from None


def parse(given: Mapping[str, Any], *, allow_code: Sequence[str] = (), many: bool = False) -> Study:
    """Make a study of plain values in the shape of a file; options as in `read`.

    >>> one = {"name": "blobs"}, {"name": "mlp"}, {"name": "focal", "gamma": 2}
    >>> tables = dict(zip(("dataset", "model", "method"), ([each] for each in one)))
    >>> study = parse({"name": "small", "seeds": [0, 1], **tables})
    >>> [cell.label for cell in study.cells()]
    ['blobs, mlp, sgd, focal gamma=2, seed 0', 'blobs, mlp, sgd, focal gamma=2, seed 1']
    """
    need("pydantic", extra="study", what="reading a study")
    from calibrant.study.spec_tables import validated

    values: dict[str, Any] = validated({"optimizer": OPTIMIZER, **given})
    for index, each in enumerate(values["model"]):
        if is_code(each["name"]) and each["name"] not in allow_code:
            raise ValueError(
                f"model[{index}].name: {each['name']!r} is code, and a file alone may not run any; "
                f"name it outside of the file as well (--allow-code {each['name']})"
            )
    for part in PARTS:
        values[part] = [
            _choice(f"{part}[{index}]", **each) for index, each in enumerate(values[part])
        ]
    for key, value in values.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    study = Study(**values)
    check_grid(study, many=many)
    return study


def _choice(
    place: str, /, name: str, label: str = "", recipe: dict[str, Any] | None = None, **settings: Any
) -> Choice:
    """One table of the grid; its label is name and settings, in the order of the file."""
    said = " ".join([name, *(f"{key}={_text(plain(each))}" for key, each in settings.items())])
    return Choice(name, settings, label or one_line(said, LONGEST_LABEL), recipe or {}, place)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
