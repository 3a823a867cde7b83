"""The processes of an installation: start, watch and stop them; the embedded broker."""
