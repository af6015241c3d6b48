"""Batches: JSON lines of requests, answered in depth-first order of the tree of their prompts."""
