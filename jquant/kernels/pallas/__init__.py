"""Kernels of our own, in Pallas, for TPUs and GPUs."""
