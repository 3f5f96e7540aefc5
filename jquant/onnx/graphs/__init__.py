"""The graph of a model as plain data, and its values; everything else in `jquant.onnx` builds on these."""
