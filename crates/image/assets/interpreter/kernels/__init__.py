"""What runs in the kernels' own processes."""
