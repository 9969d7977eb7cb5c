"""Allocation traces: read from files of any kind, written, and recorded."""
