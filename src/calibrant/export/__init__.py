"""Export calibrators: to ONNX, into the last linear layer, as a torch module."""

from calibrant.export.layers import as_module, fold
from calibrant.export.onnx import export_onnx

__all__ = ["as_module", "export_onnx", "fold"]
