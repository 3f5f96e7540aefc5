"""Reads what chips send each other from programs compiled for TPU topologies."""
