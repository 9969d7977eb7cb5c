"""Behind pages and reports: a history made of a trace or a snapshot, and its layout."""
