"""Places: what host memory and the disk have of a tree (ADR 31, 54)."""
