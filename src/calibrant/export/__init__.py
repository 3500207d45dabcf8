"""Calibrators for where models run: ONNX files, a folded last layer, a torch module."""

from calibrant.export.fold import fold
from calibrant.export.module import as_module
from calibrant.export.onnx import export_onnx

__all__ = ["as_module", "export_onnx", "fold"]
