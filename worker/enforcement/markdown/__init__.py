"""Markdown, as far as rules need it: blocks, nesting, headings."""
