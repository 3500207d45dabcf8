"""The JSON schema of a study, for editors that complete and check while one writes."""

from typing import Any

from calibrant.extras import need
from calibrant.study.spec import STUDY
from calibrant.study.spec_settings import (
    NAMES,
    PARTS,
    Fields,
    Part,
    fields_of,
    plain,
    probe_fields,
    recipe_fields,
)

TABLES = ("recipe", "probe")


def schema() -> dict[str, Any]:
    """Every key of a study with its type and default, for each name that may be chosen."""
    recipe = _table(recipe_fields())
    top = _table({key: each for key, each in STUDY.items() if key not in (*PARTS, *TABLES)})
    top["properties"] |= {"recipe": recipe, "probe": _table(probe_fields())}
    for part in PARTS:
        members = [_member(part, name, recipe) for name in NAMES[part]]
        top["properties"][part] = {"type": "array", "items": {"anyOf": members}}
    top["required"] = ["name", "dataset", "model", "method"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top}


def _member(part: Part, name: str, recipe: dict[str, Any]) -> dict[str, Any]:
    own = _table(fields_of(part, name) or {})
    # Of Hugging Face the name goes on with that of the set.
    fixed = {"const": name} if name != "hf" else {"type": "string", "pattern": "^hf:."}
    first = {"name": fixed, "label": {"type": "string"}}
    last = {} if part == "optimizer" else {"recipe": recipe}
    return {**own, "properties": {**first, **own["properties"], **last}, "required": ["name"]}


def _table(known: Fields) -> dict[str, Any]:
    pydantic = need("pydantic", extra="study", what="the schema of a study")
    columns = {}
    for key, (kind, default) in known.items():
        columns[key] = pydantic.TypeAdapter(kind).json_schema()
        if default not in (None, ""):
            columns[key]["default"] = plain(default)
    return {"type": "object", "additionalProperties": False, "properties": columns}
