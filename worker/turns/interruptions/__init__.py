"""What a turn may wait for, by kind: how it stops, how it goes on, and what a run that goes on gets of the answer."""
