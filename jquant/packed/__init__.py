"""Prepacked weights: matrices of integers, and matrices of blocks with scales."""
