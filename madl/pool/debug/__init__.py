"""Debug mode: guards around blocks, and a quarantine of what was freed."""
