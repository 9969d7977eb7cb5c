"""What makes a site, pictures and outputs of the pages beside it."""
