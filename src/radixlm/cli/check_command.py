"""`radixlm check`: what would be served of a model's files, without serving or loading them."""

from __future__ import annotations

import json
from typing import Any

import click

from radixlm.cli.options import at_hand, model_path_option, options_of_engine
from radixlm.cli.start import later
from radixlm.core.config import EngineConfig
from radixlm.parsers.style import AnswerStyle

appraise = later("radixlm.assembly.appraisal:appraise")

_NAMES_SHOWN = 5
_FLAGS = (
    *("model_impl", "dtype", "device", "context_length", "kv_cache_dtype"),
    *("tokenizer", "chat_template", "revision"),
)


@click.command("check")
@click.argument("model", required=False)
@model_path_option
@options_of_engine(*_FLAGS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(model: str | None, model_path: str | None, as_json: bool, **flags: Any) -> None:
    """Tell what would be served of MODEL, a folder or a GGUF file, without loading its weights.

    Refuses what `serve` refuses, in the same words, and exits with 1 then.
    """
    place = at_hand(model or model_path, flags["revision"])  # said before torch is imported
    config = EngineConfig.from_flags(model=place, **flags)
    found, template = appraise(config)
    facts = found._asdict() | {"chat_template": template is not None}
    if template is not None:
        calls, thoughts = AnswerStyle.found(template).names
        facts |= {"tool_call_parser": calls, "reasoning_parser": thoughts}
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    for line in _lines(facts):
        click.echo(line)


def _lines(facts: dict[str, Any]) -> list[str]:
    """The facts for people, a line each."""
    by = facts["computed_by"]
    types = ", ".join(f"{kind} {_size(nbytes)}" for kind, nbytes in facts["stored"].items())
    unused, shown = facts["unused"], ", ".join(facts["unused"][:_NAMES_SHOWN])
    more = ", ..." if len(unused) > _NAMES_SHOWN else ""
    chat = "from the model" if facts["chat_template"] else "none: chats need --chat-template"
    its = facts["state_bytes"]
    state = f"; a checkpoint of states {_size(its)}" if its else ""
    if its and facts["kv_bytes"]:
        state += f", as much as {1000 * its // facts['kv_bytes']:,} tokens"
    rows = {
        "model": f"{facts['name']}, {facts['model_type']}",
        "computed by": by if by == "radixlm" else f"{by}'s modules, with attention of radixlm",
        "files": f"{facts['file_format']}: {types}",
        "computed in": facts["dtype"],
        "context": f"{facts['context_length']:,} tokens",
        "weights": f"about {_size(facts['weight_bytes'])} of memory",
        "1,000 tokens": f"{_size(facts['kv_bytes'])} of keys and values{state}",
        "chat template": chat,
        "tool calls": facts.get("tool_call_parser", "none"),
        "reasoning": facts.get("reasoning_parser", "none"),
        "not read": f"{len(unused):,} tensors: {shown}{more}" if unused else "no tensor",
    }
    return [f"{name:14} {said}" for name, said in rows.items()]


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:,.2f} MB"
