"""Reads a model from a file, which may be malformed, into a `Graph`."""
