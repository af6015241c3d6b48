"""litellm: its SDK, and its proxy with the openai package in front."""

from __future__ import annotations

import json

from radixlm.testing.ports import free_port
from scripts.try_clients.environments import python_of
from scripts.try_clients.place import Place
from scripts.try_clients.server import KEY, MODEL


def use_litellm(place: Place) -> str:
    place.drive(python_of("litellm"), "litellm_sdk")
    return (
        "SDK by openai/, hosted_vllm/ and anthropic/: answers sent back as they came, a call and "
        "its result, streams, reasoning_effort"
    )


def use_litellm_proxy(place: Place) -> str:
    port = free_port()
    model = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{place.url}/v1", "api_key": KEY}
    config = place.work / "config.json"  # which is YAML, too
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": MODEL, "litellm_params": model}],
                "general_settings": {"master_key": KEY},
            }
        ),
        encoding="utf-8",
    )
    command = str(python_of("litellm").with_name("litellm"))
    flags = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with place.beside([command, *flags], f"{url}/health/liveliness"):
        place.drive(None, "openai_turns", "chat", "completions", "responses", url=url)
    return "chat, completions, responses by the openai package through the proxy"
