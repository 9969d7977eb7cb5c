"""Allocation traces: the data structure, and a reader or writer for each format."""
