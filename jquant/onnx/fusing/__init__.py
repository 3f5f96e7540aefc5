"""Replaces patterns of nodes by single nodes, when a model is loaded."""
