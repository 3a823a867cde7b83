"""Pages of operators: an overview, the list of turns, and a page for each turn. Made here, without JavaScript."""
