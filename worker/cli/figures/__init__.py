"""Commands that show figures: live, over a span of time, as traces."""
