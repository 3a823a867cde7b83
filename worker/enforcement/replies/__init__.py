"""Replies to a feedback, as agents write them: which parts they offer, and what is only said about them."""
