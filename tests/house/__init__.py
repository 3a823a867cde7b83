"""How large the product is and how it is cut: ``python -m tests.house [REVISION...] [--trace]``."""
