"""Host memory: one module for each operating system, through its raw calls."""
