"""Floor 7, the frontend language: Python programs of many model calls, with SGLang's words."""
