"""The hot path in plain Python, for where nothing compiles."""
