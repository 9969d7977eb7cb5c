"""What PyTorch's memory snapshots say, and models of its allocator."""
