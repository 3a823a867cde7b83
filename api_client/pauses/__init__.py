"""What keeps turns from starting: operators' pauses, circuit breakers of models, rate limits of services."""
