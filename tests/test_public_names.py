"""The public surface of the package."""

import subprocess
import sys

import pytest

import calibrant

NAMES = [*calibrant.__all__, *(f"integrations.{name}" for name in calibrant.integrations.__all__)]


def test_dir_lists_the_public_names_and_nothing_else():
    assert set(dir(calibrant)) == {*calibrant.__all__, "__version__"}


def test_public_names_are_imported_at_the_first_access():
    code = "import calibrant, sys; print('torch' in sys.modules)"
    code += "".join(f"; print(calibrant.{name})" for name in NAMES)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = run.stdout.splitlines()
    assert len(lines) == 1 + len(NAMES), run.stderr
    assert lines[0] == "False"
    assert all(name in line for name, line in zip(NAMES, lines[1:], strict=True))


@pytest.mark.parametrize("module", [calibrant, calibrant.integrations])
def test_unknown_names_are_attribute_errors(module):
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018
