"""Writes functions of JAX as ONNX models."""
