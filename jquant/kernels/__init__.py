"""Integer products and convolutions, weight-only products, and their implementations by platform."""
