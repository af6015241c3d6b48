"""Makes RadixLM's embedded demo model: text, tokenizer, training, evaluation."""
