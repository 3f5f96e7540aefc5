"""Measures what a program of many operators costs: its size, and the time to trace, lower, compile and run it."""
