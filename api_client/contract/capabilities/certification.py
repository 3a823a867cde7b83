"""Catalogue entries for the certification of runners."""

PLUGINS = {"commands": {"certify-runner": "certification"}}
