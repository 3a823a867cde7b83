"""Commands that show figures: live, over a time span, by version."""
