"""The cache, told of over HTTP: why prompts missed, and what to do about it."""
