"""How requests become turns."""
