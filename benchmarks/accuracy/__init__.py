"""Measures how much of its accuracy a real network keeps under the schemes of `jquant.transform`, beside Qwix."""
