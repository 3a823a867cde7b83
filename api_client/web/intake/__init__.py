"""What takes a turn in: limits of its caller, a repeated question, a replay."""
