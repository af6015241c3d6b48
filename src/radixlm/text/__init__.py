"""Floor 1: tokenizer, detokenizer, chat templates; no torch."""
