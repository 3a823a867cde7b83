"""The rule ``claims``: statements of an answer about its work, compared with what its runs did."""
