"""Integer matrix products."""
