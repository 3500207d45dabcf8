"""Export calibrators: to ONNX, into the last linear layer, as a torch module."""

from calibrant.export.fold import fold
from calibrant.export.module import as_module
from calibrant.export.onnx import export_onnx

__all__ = ["as_module", "export_onnx", "fold"]
