"""Code for Open WebUI alone."""
