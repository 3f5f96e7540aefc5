"""Measures networks that `jquant.transform` converted to int8 beside float, handwritten int8, Qwix and onnxruntime."""
