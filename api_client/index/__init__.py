"""Many turns: which match, page by page; dead letters; clearing up."""
