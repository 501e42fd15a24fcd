"""Runs code in Jupyter kernels on behalf of HTTP clients; lives inside a sandbox."""
