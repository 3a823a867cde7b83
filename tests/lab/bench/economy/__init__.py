"""What enforcement costs and what it lets through: 200 broken answers, five behaviours of a model, an own oracle."""
