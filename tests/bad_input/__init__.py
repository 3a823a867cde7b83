"""The 72 rows of bad input: ``rows.py`` says which test holds each; what no other place holds is tested here."""
