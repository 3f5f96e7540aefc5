"""What steers compilers: implementations by platform, programs over a mesh, and values that are materialised once."""
