"""The certification of runners: its part of the catalogues."""

PLUGINS = {"commands": {"certify-runner": "certification"}}
