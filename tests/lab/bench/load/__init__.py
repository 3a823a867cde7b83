"""The client of every row: one closed loop, one listener. Runs in our environment and in the peers' (needs hiredis)."""
