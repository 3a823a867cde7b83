"""What agents that are installed programs have in common: their declaration, their HOME, their way to the model."""
