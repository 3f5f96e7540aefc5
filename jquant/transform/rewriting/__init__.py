"""Runs a program with another computation at each of its sites."""
