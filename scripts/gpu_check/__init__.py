"""What a GPU does with RadixLM, in one call of ten minutes: `python -m scripts.gpu_check`."""
