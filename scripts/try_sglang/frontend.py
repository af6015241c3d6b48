"""Runs programs that `import radixlm` with SGLang's frontend in its place: the words are the same.

    .venv-sglang/bin/python scripts/try_sglang/frontend.py URL KEY [--mended] PROGRAM ...

Writes a line of JSON for each: its name, and what its `main` returns, or its error. It needs
SGLang's wheel and a few small packages, none of ours. --mended: with the mistake in `select` put
right.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import runpy
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

_ROLES = ("system", "user", "assistant")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("key")
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("programs", nargs="+", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # what fails in a program is told once, as its error
    sglang = load_frontend()
    sys.modules["radixlm"] = sglang
    register_template()
    endpoint = importlib.import_module("sglang.lang.backend.runtime_endpoint").RuntimeEndpoint
    made = mended(endpoint) if options.mended else endpoint
    sglang.set_default_backend(made(options.url, options.key, chat_template_name="demo"))
    for program in options.programs:
        print(json.dumps({"program": program.stem, **outcome(program)}), flush=True)


def load_frontend() -> Any:
    """The package as programs see it. Its own __init__ would load the server, which needs CUDA."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None, "SGLang's frontend is not installed: make .venv-sglang/.ready"
    sglang = ModuleType("sglang")
    sglang.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["sglang"] = sglang
    for name in ("sglang.lang.choices", "sglang.lang.api"):
        vars(sglang).update(
            (word, value)
            for word, value in vars(importlib.import_module(name)).items()
            if not word.startswith("_")
        )
    return sglang


def register_template() -> None:
    """SGLang's frontend writes messages itself; this is how the demo model's template does."""
    templates = importlib.import_module("sglang.lang.chat_template")
    base: Any = templates.ChatTemplate

    class Demo(base):  # type: ignore[misc]
        def get_prefix_and_suffix(self, role: str, before: list[Any]) -> tuple[str, str]:
            prefix, suffix = super().get_prefix_and_suffix(role, before)
            return ("" if before else "<|bos|>") + prefix, suffix

    around = {role: (f"<|{role}|>", "<|eos|>") for role in _ROLES}
    templates.register_chat_template(
        Demo(name="demo", default_system_prompt=None, role_prefix_and_suffix=around)
    )


def mended(endpoint: Any) -> Any:
    """One that asks for log-probabilities from the prompt's last token on, which is the one that
    `select` looks for in front of a choice; SGLang 0.5.23 asks from the one before it on.
    """

    class Mended(endpoint):  # type: ignore[misc]
        def _generate_http_request(self, s: Any, data: dict[str, Any]) -> Any:
            if "logprob_start_len" in data:
                data["logprob_start_len"] += 1
            return super()._generate_http_request(s, data)

    return Mended


def outcome(program: Path) -> dict[str, Any]:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"result": runpy.run_path(str(program))["main"]()}
    except Exception as error:  # whatever it is belongs into the table
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
