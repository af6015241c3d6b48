"""The commands. Importing one is cheap: what it runs is loaded later."""
