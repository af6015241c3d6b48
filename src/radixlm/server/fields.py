"""Fields of the published APIs that this server does not act on: the one place where they stand.

A field that no table holds, and that no request model has, is refused as unknown. So nothing that a
client asks for is left out in silence.
"""

from __future__ import annotations

from collections.abc import Mapping

# Taken with any value, because there is nothing to do for them here: who asks (`user`,
# `safety_identifier`, `metadata`), which of many servers may have the prompt cached
# (`prompt_cache_key`: it divides nothing, as `cache_salt` does).
REQUEST_NO_OPS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    }
)
# What came with an answer, when it is sent back as a message.
MESSAGE_NO_OPS = frozenset({"annotations"})

# Known but not supported yet, and the values that ask for nothing; null always does.
NotYet = Mapping[str, tuple[object, ...]]
# Of OpenAI's chat and completions, and of SGLang's and vLLM's routes.
NOT_YET: NotYet = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "tool_calls": ([],),
    "tool_call_id": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "refusal": ("",),
    "modalities": (["text"],),
    "moderation": (),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "store": (False,),
    # In prompts without messages there is no place to mark; every prefix of them is cached.
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "prompt_cache_breakpoint": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "lora_path": (),
    "image_url": (),
    "input_audio": (),
    "file": (),
    "spaces_between_special_tokens": (True,),
    "no_stop_trim": (False,),
    "stop_regex": ([], ""),
    "structural_tag": (),
    "custom_params": (),
    "custom_logit_processor": (),
    "stream_interval": (1,),
    "log_metrics": (True,),
    "background": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "token_ids_logprob": (),
    "input_embeds": (),
    "image_data": (),
    "audio_data": (),
    "video_data": (),
    "session_params": (),
    "chat_template": (),
    "continuous_usage_stats": (False,),
    "include_obfuscation": (False,),
}
# Of these, what vLLM, or OpenAI once, calls what has another name here.
INSTEAD: Mapping[str, str] = {
    "functions": "tools",
    "function_call": "tool_choice, or tool_calls in a message,",
    "structured_outputs": "json_schema, regex, ebnf or response_format",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "regex",
    "guided_grammar": "ebnf",
}


def asks_for_nothing(value: object, neutral: tuple[object, ...]) -> bool:
    """Whether a field that is not supported yet holds a value that changes nothing. Values are
    compared as JSON does: to Python 0 is False too, while 1.0 is one way to write 1.
    """
    return value is None or any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral
    )
