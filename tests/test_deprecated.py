"""Renamed names and options work for one more release, with a warning that names the new one."""

import pytest

from calibrant.deprecated import OPTIONS, replace_options


@pytest.mark.parametrize(("command", "old", "new"), [(*key, new) for key, new in OPTIONS.items()])
def test_an_old_option_becomes_the_new_one(command, old, new):
    with pytest.warns(UserWarning, match=f"{command} {old} is deprecated: use {new}"):
        assert replace_options([command, "f.npz", old, "x"]) == [command, "f.npz", new, "x"]
    with pytest.warns(UserWarning, match=new):
        assert replace_options(["--debug", command, f"{old}=x"]) == ["--debug", command, f"{new}=x"]


def test_the_option_of_another_command_stays():
    assert replace_options(["train", "--method", "focal"]) == ["train", "--method", "focal"]
