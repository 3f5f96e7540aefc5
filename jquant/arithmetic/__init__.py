"""Arithmetic that gives the same bits inside any program."""
