"""State that relays share in the store: rate limits, open questions, sign-ins, links, Open WebUI requests."""
