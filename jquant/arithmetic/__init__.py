"""Arithmetic that has the same bits inside any program."""
