"""The intake of turns: limits of its caller, a repeated question, a replay."""
