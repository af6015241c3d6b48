"""Pages that people look at: the tree, explanations, the page, the description of the API."""
