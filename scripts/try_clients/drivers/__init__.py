"""What runs in the clients' own environments: nothing of ours but this folder is imported."""
