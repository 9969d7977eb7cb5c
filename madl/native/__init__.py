"""C entry points into pools, for libraries that allocate from C."""
