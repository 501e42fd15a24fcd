"""The implementation."""
