"""Catalogue entries for the certification of runners."""

PLUGINS = {"commands": {"worker.certify": "certification"}}
