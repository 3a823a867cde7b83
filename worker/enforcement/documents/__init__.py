"""What an answer is made of: step marker, ADR, header, sections; and putting parts together."""
