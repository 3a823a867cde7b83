"""Notes of relays for each other in the store: rates, open questions, sign-ins, links, what Open WebUI sent."""
