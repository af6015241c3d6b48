"""Floor 0: bytes of files in, values out: GGUF, safetensors, traces. No torch."""
