"""What calibration observes of the inputs of sites, and the scales that follow."""
