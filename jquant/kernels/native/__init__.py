"""Products and convolutions on CPUs by compiled code, from the package jquant-native if it is installed."""
