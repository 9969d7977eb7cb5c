"""Memory in the hands of other libraries."""
