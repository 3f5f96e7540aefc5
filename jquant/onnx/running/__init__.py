"""Computes a graph while JAX traces it: the table of converters, what is known before, and limits."""
