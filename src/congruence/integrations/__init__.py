"""Adapters for other libraries, one module each; each needs an extra."""

from __future__ import annotations

from congruence.integrations.faiss import export_faiss, to_faiss, to_faiss_index
from congruence.integrations.onnx import export_onnx, to_onnx

__all__ = ["export_faiss", "export_onnx", "to_faiss", "to_faiss_index", "to_onnx"]
