"""Import optional dependencies, with an error that says how to install them."""

from importlib import import_module
from types import ModuleType


def need(module: str, *, extra: str, what: str) -> ModuleType:
    """Import a module that only some users have installed.

    Args:
        module: dotted name, such as `pyarrow.parquet`.
        extra: the extra of calibrant that installs it.
        what: the feature that needs it, such as `reading parquet files`, for the message.

    Raises:
        ImportError: the module is not installed or fails to import.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise ImportError(f"{what} needs {package}, which fails to import: {error}") from error
        raise ImportError(f"{what} needs {package}: pip install 'calibrant[{extra}]'") from error
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise ImportError(f"{what} needs {package}, which fails to import: {reason}") from error
