"""sglang-router and vllm-router: the openai package behind them, and their own /generate."""

from __future__ import annotations

from radixlm.testing.ports import free_port
from scripts.try_clients.environments import python_of
from scripts.try_clients.place import Place
from scripts.try_clients.server import KEY


def use_sglang_router(place: Place) -> str:
    port = free_port()
    python = python_of("sglang-router")
    flags = ["--worker-urls", place.url, "--port", str(port), "--policy", "cache_aware"]
    flags += ["--api-key", KEY, "--prometheus-port", str(free_port())]
    url = f"http://127.0.0.1:{port}"
    with place.beside([str(python), "-m", "sglang_router.launch_router", *flags], f"{url}/health"):
        place.drive(None, "openai_turns", "chat", "completions", "responses", url=url)
        place.drive(None, "generate_turns", url=url)
    return "chat, completions, responses, /generate through it, with the policy cache_aware"


def use_vllm_router(place: Place) -> str:
    port = free_port()
    command = str(python_of("vllm-router").with_name("vllm-router"))
    flags = ["--worker-urls", place.url, "--port", str(port), "--policy", "cache_aware"]
    flags += ["--api-key", KEY, "--prometheus-port", str(free_port())]
    url = f"http://127.0.0.1:{port}"
    with place.beside([command, *flags], f"{url}/health"):
        place.drive(None, "openai_turns", "chat", "completions", "responses", url=url)
        place.drive(None, "generate_turns", url=url)
    return "chat, completions, responses, /generate through it, with the policy cache_aware"
