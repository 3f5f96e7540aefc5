"""The integer matrix product, measured beside other implementations."""
