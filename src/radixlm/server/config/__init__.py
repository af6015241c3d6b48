"""The settings of a server, each declared once."""
