"""Adapters for other libraries, most of them optional extras."""

from importlib import import_module

__all__ = [
    "lightning",
    "segmentation",
    "sklearn",
    "torchmetrics",
    "transformers",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
