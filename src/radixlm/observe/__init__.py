"""What explains: pictures of the tree, why prompts missed."""
