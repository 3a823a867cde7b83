"""Conversion of requests to turns."""
