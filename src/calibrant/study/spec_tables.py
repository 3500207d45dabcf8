"""The tables of a study as pydantic models, and what is wrong with one in a line.

Imported only when a study is read: pydantic is an extra.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, time
from functools import partial, reduce
from operator import or_
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    create_model,
)
from typing_extensions import TypedDict

from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.selection import AUTO, BLEND
from calibrant.data.options import OPTION_NAMES, Options
from calibrant.data.shifts import SHIFTS
from calibrant.files.checks import one_line
from calibrant.methods import build
from calibrant.metrics import METRICS
from calibrant.setting_errors import SettingError, did_you_mean
from calibrant.study.spec_settings import (
    LONGEST_LABEL,
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
from calibrant.training.probing import Probing
from calibrant.training.recipe import RECIPES, named_settings

CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
# A model that is code of the user's, in place of its name.
CODE = "package.module:factory"
# Number of classes with which the settings of methods are tried.
CLASSES = 10
# Types of pydantic's errors, as a reader says what was expected.
EXPECTED = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a table",
    "union_tag_not_found": "a table",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "a string like {pattern}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} of them",
}


def check_names(what: str, known: Collection[str], names: list[str]) -> list[str]:
    """Refuse a name that does not exist, or that is given twice."""
    for name in names:
        if name not in known:
            raise ValueError(f"no {what} {shown(name)}; {did_you_mean(name, known)}")
    return check_unique(names)


def check_unique(values: list[Any]) -> list[Any]:
    """Refuse a value that is given twice."""
    if len(set(values)) < len(values):
        again = next(each for at, each in enumerate(values) if each in values[:at])
        raise ValueError(f"{again} is given twice")
    return values


def check_label(label: str) -> str:
    """Refuse a label that would not fit into a table."""
    if not label.strip() or not label.isprintable() or len(label) > LONGEST_LABEL:
        raise ValueError(
            f"expected one line of 1 to {LONGEST_LABEL} characters, got {shown(label)}"
        )
    return label


def check_probe(settings: dict[str, Any]) -> dict[str, Any]:
    """Refuse settings that a probe does not take."""
    Probing(settings)
    return settings


def check_member(part: Part, given: dict[str, Any]) -> dict[str, Any]:
    """Try the values as far as that needs neither data nor networks."""
    name = given["name"]
    settings = {k: v for k, v in given.items() if k not in ("name", "label", "recipe")}
    try:
        if part == "dataset":
            Options(**{key: each for key, each in settings.items() if key in OPTION_NAMES})
        if part == "method":
            build(name, classes=CLASSES, **settings)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{error}") from error
    return given


def _table(title: str, known: Fields, config: ConfigDict = CONFIG, **required: Any) -> Any:
    """A table of settings that may be left out; a plain dict, as any name may be a setting's."""
    settings: dict[str, Any] = {
        key: NotRequired[Annotated[kind, Field(json_schema_extra={"default": plain(default)})]]
        for key, (kind, default) in known.items()
    }
    table: Any = TypedDict(title, {**required, **settings})  # type: ignore[misc]
    table.__pydantic_config__ = config  # type: ignore[attr-defined]
    return table


RecipeTable: Any = Annotated[
    _table("recipe", recipe_fields()),
    BeforeValidator(
        named_settings,
        json_schema_input_type=_table(
            "recipe", {**recipe_fields(), "name": (Literal[tuple(RECIPES)], "plain")}
        )
        | Literal[tuple(RECIPES)],
    ),
]
ProbeTable = _table("probe", probe_fields())
LABEL = (Annotated[str, AfterValidator(check_label)], "")
RECIPE: tuple[Any, Any] = (RecipeTable, {})


def _keys(part: Part, name: str) -> Fields:
    """Keys of one dataset, model, optimizer or method, in addition to its name."""
    frame = {"label": LABEL} if part == "optimizer" else {"label": LABEL, "recipe": RECIPE}
    return {**fields_of(part, name), **frame}


def _members(part: Part) -> Any:
    """A list of tables, each chosen by its name; a model may also be the user's code."""
    names = [*NAMES[part], *([CODE] if part == "model" else [])]
    # The name of a dataset of Hugging Face follows a colon.
    open_names: dict[str, Any] = {"hf": Annotated[str, Field(pattern="^hf:.")], CODE: str}
    tables = []
    for name in names:
        config: ConfigDict = {**CONFIG, "extra": "allow"} if name == CODE else CONFIG
        own = open_names.get(name, Literal[name])
        table = _table(f"{part} {name}", _keys(part, name), config, name=own)
        tables.append(Annotated[table, AfterValidator(partial(check_member, part)), Tag(name)])

    def tag(given: Any) -> str | None:
        name = given.get("name") if isinstance(given, dict) else None
        if not isinstance(name, str):
            return None
        return CODE if part == "model" and is_code(name) else family_name(part, name)

    return list[Annotated[reduce(or_, tables), Discriminator(tag)]]  # type: ignore[misc]


class StudyOptions(BaseModel):
    """Options of a study in addition to the tables of its grid."""

    model_config = {**CONFIG, "frozen": True}

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    about: str = ""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], AfterValidator(check_unique)] = [0]
    calibrators: Annotated[
        list[str], AfterValidator(partial(check_names, "calibrator", [*CALIBRATORS, AUTO, BLEND]))
    ] = ["temperature", "focal_temperature"]
    metrics: Annotated[
        list[str], Field(min_length=1), AfterValidator(partial(check_names, "metric", METRICS))
    ] = ["accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "sece", "smece"]
    # More only take time: the ends of an interval are known to three digits long before.
    resamples: Annotated[int, Field(ge=1, le=100_000)] = 300
    shifts: Annotated[list[str], AfterValidator(partial(check_names, "shift", SHIFTS))] = []


StudyTable: Any = create_model(  # type: ignore[call-overload]
    "StudyTable",
    __base__=StudyOptions,
    recipe=(RecipeTable, {}),
    probe=(Annotated[ProbeTable, AfterValidator(check_probe)] | None, None),
    **{part: (_members(part), []) for part in PARTS},
)


def validated(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a study in their types and with defaults; one line says what is wrong."""
    _check_integers(given, [])
    try:
        study = StudyTable.model_validate(dict(given))
    except ValidationError as error:
        raise ValueError(message(error, given)) from None
    return {name: getattr(study, name) for name in StudyTable.model_fields}


def _check_integers(given: Any, steps: list[Any]) -> None:
    """Refuse integers that TOML does not have, but Python reads."""
    if isinstance(given, int) and given.bit_length() > 63:
        raise ValueError(f"{_path(steps)}: expected at most 64 bits, got {shown(given)}")
    inner = given.items() if isinstance(given, Mapping) else ()
    for step, each in enumerate(given) if isinstance(given, list | tuple) else inner:
        _check_integers(each, [*steps, step])


def message(error: ValidationError, given: Mapping[str, Any]) -> str:
    """The first error in one line: where it is, what was expected, and what came."""
    # A key that does not exist often explains one that is missing.
    found = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    first, steps = found[0], _steps(given, found[0]["loc"])
    path, kind, value = _path(steps), first["type"], first["input"]
    if kind == "extra_forbidden":
        return f"{path}: unknown; {_hint(given, steps)}"
    if kind == "missing":
        return 'name: missing; write name = "..."'
    if kind == "union_tag_not_found" and isinstance(value, dict):
        if "name" not in value:
            return f'{path}.name: missing; write name = "..."'
        return f"{path}.name: expected a string, got {shown(value['name'])}"
    if kind == "union_tag_invalid":
        name = value["name"]
        return f"{path}.name: no {steps[0]} {shown(name)}; {did_you_mean(name, NAMES[steps[0]])}"
    if path in PARTS and isinstance(value, dict):
        return f"{path}: expected a list of tables, got one: write [[{path}]], not [{path}]"
    if kind == "value_error":
        cause = first["ctx"]["error"]
        if isinstance(cause, SettingError):
            return f"{path}.{cause.name}: {cause.problem}"
        return f"{path}: {cause}"
    # A value that may have several types has an error for each.
    same = [each for each in found if _steps(given, each["loc"]) == steps]
    return f"{path}: expected {' or '.join(map(_expected, same))}, got {shown(value)}"


def _expected(error: Any) -> str:
    kind: str = error["type"]
    return EXPECTED[kind].format(**error.get("ctx", {})) if kind in EXPECTED else error["msg"]


def _steps(given: Any, place: Sequence[str | int]) -> list[Any]:
    """The keys and indices of a place that are in the file; pydantic adds the names of types."""
    steps: list[Any] = []
    for step in place:
        inside = isinstance(given, list) and isinstance(step, int)
        if inside or (isinstance(given, dict) and step in given):
            steps.append(step)
            given = given[step]
    return steps


def _path(steps: Iterable[str | int]) -> str:
    parts = (f"[{each}]" if isinstance(each, int) else f".{one_line(each, 60)}" for each in steps)
    return "".join(parts).removeprefix(".")


def _hint(given: Mapping[str, Any], steps: Sequence[Any]) -> str:
    """The nearest key of the table that the last step is in."""
    *before, key = steps
    if key == "optimizer":
        return "optimizers have tables of their own, [[optimizer]]"
    if not before:
        known: Iterable[str] = StudyTable.model_fields
    elif before[-1] == "recipe":
        known = ["name", *recipe_fields()]
    elif before == ["probe"]:
        known = probe_fields()
    else:
        part, place = before
        known = ["name", *_keys(part, given[part][place]["name"])]
    return did_you_mean(one_line(key, 60), known)


def shown(value: Any) -> str:
    """A value in a message: one line, and not long."""
    # Python refuses to print integers of thousands of digits.
    if isinstance(value, int) and value.bit_length() > 63:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict | list) and value:
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return f"the date or time {value}"
    return one_line(repr(value[:200] if isinstance(value, str) else value), 80)


def schema() -> dict[str, Any]:
    """The JSON schema of a study, for editors that complete and check while one writes."""
    found: dict[str, Any] = StudyTable.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
