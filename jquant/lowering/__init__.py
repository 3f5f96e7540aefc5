"""What steers compilers: forms by platform, partitioned programs, values that are materialised once."""
