"""Modules of the capabilities, each with the entries of one capability in the catalogues."""
