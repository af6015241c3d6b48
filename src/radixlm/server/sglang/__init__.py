"""SGLang's own routes, with vLLM's."""
