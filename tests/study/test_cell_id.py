"""Ids of cells: the same for the same settings, different for different ones."""

import pytest

from calibrant.study.cell_id import cell_id


def test_ids_do_not_depend_on_the_order_of_names():
    assert cell_id({"a": 1, "b": {"c": 2, "d": 3}}) == cell_id({"b": {"d": 3, "c": 2}, "a": 1})


def test_an_id_is_the_start_of_the_sha256_of_the_canonical_json():
    # printf '{"a":[1,2.5,null],"b":"\\u00e4"}' | sha256sum
    assert cell_id({"b": "ä", "a": [1, 2.5, None]}) == "f4b054685b56a681"


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (1, "1"), (None, "null"), ([1], [[1]]), ({}, [])]
)
def test_different_values_have_different_ids(one, other):
    assert cell_id({"value": one}) != cell_id({"value": other})


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lr": float("nan")}, "plain JSON without NaN"),
        ({"lr": float("inf")}, "plain JSON without NaN"),
        ({"lr": {1, 2}}, "plain JSON"),
        ({1: "a"}, "names of settings must be text"),
        ({"a": [{2: "b"}]}, "names of settings must be text"),
    ],
)
def test_settings_that_are_not_plain_json_are_refused(config, message):
    with pytest.raises(ValueError, match=message) as refused:
        cell_id(config)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_cell_that_is_no_dict_is_refused():
    with pytest.raises(TypeError, match="must be a dict of settings, got list"):
        cell_id([1])


def test_text_of_users_never_becomes_a_path():
    for name in ("../../x", "/etc/passwd", "a\0b", "CON", "x" * 300, "..", "\ud800"):
        id = cell_id({"name": name, name: 1})
        assert len(id) == 16
        assert set(id) <= set("0123456789abcdef")
