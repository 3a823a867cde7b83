"""Sending notices: who is called when somebody is needed (docs/webhooks.md)."""
