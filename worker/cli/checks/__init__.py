"""``turns doctor`` and its checks."""
