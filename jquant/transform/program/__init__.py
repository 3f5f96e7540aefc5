"""Reads the program of a function: finds its sites, and says why the rest stays float."""
