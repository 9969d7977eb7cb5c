"""One device API each, behind one protocol."""
