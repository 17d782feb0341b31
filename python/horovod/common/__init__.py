"""Shared code of all framework adapters; it imports no framework."""
