"""Claims of real transcripts, and how often the rule is right about them."""
