"""What a handle does besides being allocated and freed: views, copies, sharing."""
