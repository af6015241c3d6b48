"""Floor 3: products with weights as this machine multiplies best, plain and quantized."""
