"""One run of a program: its history made from a file, checked, laid out on a page."""
