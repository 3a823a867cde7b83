"""State shared by relays in the store: rate limits, open questions, sign-ins, links, Open WebUI requests."""
