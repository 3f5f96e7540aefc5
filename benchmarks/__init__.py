"""The integer matrix multiply beside its peers."""
