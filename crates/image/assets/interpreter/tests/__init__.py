"""Tests of the interpreter; those that need real kernels skip where ipykernel is not installed."""
