"""One operator a module."""
