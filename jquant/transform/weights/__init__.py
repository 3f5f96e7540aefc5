"""Prepares, quantizes and packs the weights of sites."""
