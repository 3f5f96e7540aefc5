"""Arguments: converted to arrays, and checked against the specifications' tables."""
