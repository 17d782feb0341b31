"""Starting jobs from Python."""
