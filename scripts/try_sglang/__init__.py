"""See scripts/sglang_frontend.py."""
