"""Chooses a scheme for each site: the search for mixed precision."""
