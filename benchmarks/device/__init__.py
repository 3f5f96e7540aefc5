"""Compares and measures products on this machine's GPU or TPU."""
