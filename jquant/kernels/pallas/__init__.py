"""jquant's own kernels, in Pallas, for TPUs and GPUs."""
