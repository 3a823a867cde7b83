"""What relays keep in the store for each other: rates, open questions, sign-ins, what Open WebUI sent."""
