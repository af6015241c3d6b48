"""Floor 0: the values that all floors share. Imports nothing of ours, and no torch."""
