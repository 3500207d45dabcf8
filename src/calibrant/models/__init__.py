"""Networks: modules with `features(x)` and a linear `head`, built by name and seed."""

from calibrant.models.building import build, from_path, settings_of
from calibrant.models.network import Network
from calibrant.models.registry import MODELS, Model, models_for

__all__ = ["MODELS", "Model", "Network", "build", "from_path", "models_for", "settings_of"]
