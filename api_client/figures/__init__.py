"""From counters to figures: rates, durations, costs over a span of time."""
