"""Recipes, which say as data how sites are quantized, and checks of them."""
