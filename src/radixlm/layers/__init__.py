"""Floor 3: linear, norm, rotary, embedding."""
