"""What keeps turns from starting: pauses that operators set, and circuit breakers of models."""
