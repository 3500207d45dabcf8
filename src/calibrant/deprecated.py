"""Names and options that were renamed: the old ones work for one more release, with a warning."""

import warnings
from collections.abc import Sequence

# Command and option, and the option that replaces it.
OPTIONS = {
    ("fit", "--method"): "--calibrator",
    ("audit", "--method"): "--interval-type",
}


def replace_options(args: Sequence[str]) -> list[str]:
    """Replace old options of a command line by the new ones."""
    command = next((each for each in args if not each.startswith("-")), "")
    found = []
    for each in args:
        option, equals, value = each.partition("=")
        new = OPTIONS.get((command, option))
        if new is not None:
            # A UserWarning, which the command line shows.
            warnings.warn(f"{command} {option} is deprecated: use {new}", stacklevel=2)
        found.append(f"{new or option}{equals}{value}")
    return found
