"""Measures jquant beside JAX's floats, onnxruntime, llama.cpp and Qwix, with what each loses, in one run."""
