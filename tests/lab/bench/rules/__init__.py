"""What rules cost: CPU an answer beside peers, judging recorded answers again, and false alarms of a comparison."""
