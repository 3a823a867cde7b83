"""Server-rendered HTML pages for operators: the overview, the list of turns and a page for each turn."""
