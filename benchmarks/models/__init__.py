"""Measures whole int8 models beside the engines that they were made for."""
