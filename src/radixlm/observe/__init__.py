"""Explanations: pictures of the tree, and why prompts missed."""
