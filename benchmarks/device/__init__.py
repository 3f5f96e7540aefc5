"""Checks the kernels and the fused products on an accelerator: ``.ci/device``."""
