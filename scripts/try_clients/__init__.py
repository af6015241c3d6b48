"""What `scripts/clients.py` does with each client."""
