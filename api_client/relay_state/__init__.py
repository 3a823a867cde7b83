"""Notes of relays for each other in the store: rates, open questions, sign-ins, what Open WebUI sent."""
