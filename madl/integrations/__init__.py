"""Pools and memory for other libraries: one module for each, which imports it late."""
