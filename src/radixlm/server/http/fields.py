"""Fields of the published APIs that this server does not act on: the one place where they stand.

And the rule for all that a request model does not have: what asks for nothing is taken, and so is
what came with an answer; all else is refused by its name. So nothing that a client asks for is left
out in silence. With --strict-fields only what a table holds may ask for nothing, and what came with
an answer may not come back.
"""

from __future__ import annotations

from collections.abc import Mapping

# Taken with any value, because there is nothing to do for them here: who asks (`user`,
# `safety_identifier`, `metadata`), which of many servers may have the prompt cached
# (`prompt_cache_key`: it divides nothing, as `cache_salt` does), which of vLLM's libraries is to
# follow a grammar (there is one here).
REQUEST_NO_OPS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "safety_identifier",
        "user",
        "guided_decoding_backend",
    }
)
# What came with an answer, when it is sent back as a message.
MESSAGE_NO_OPS = frozenset({"annotations"})
# The same from answers that a client's own libraries put together, or that another server gave:
# what they say of the text stands in the message's own fields, too.
MESSAGE_ECHOES = frozenset(
    {
        "extra_content",
        "id",
        "parsed",
        "provider_specific_fields",
        "reasoning_details",
        "reasoning_items",
        "thinking_blocks",
    }
)
CALL_ECHOES = frozenset({"extra_content", "parsed_arguments", "provider_specific_fields"})

# Known but not supported yet, and the values that ask for nothing; null always does, and so does
# false, where true is not among them.
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
    # How long an answer should be is the model's to know, and templates have no word for it.
    "verbosity": ("low", "medium", "high"),
    # Chats are never stored; there is no route that would give one again.
    "store": (True, False),
    # Thoughts come apart from the answer, and in streams, and are always given.
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "include_reasoning": (True,),
    "cache_prompt": (True,),
    # In prompts without messages there is no place to mark; every prefix of them is cached.
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "prompt_cache_breakpoint": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "guided_whitespace_pattern": (),
    "lora_path": (),
    "image_url": (),
    "input_audio": (),
    "file": (),
    "spaces_between_special_tokens": (True,),
    "no_stop_trim": (False,),
    "stop_regex": ([], ""),
    "structural_tag": (),
    "custom_params": ({},),
    "custom_logit_processor": (),
    "stream_interval": (1,),
    "log_metrics": (True, False),
    "length_penalty": (1.0,),
    "prompt_logprobs": (),
    "best_of": (1,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "truncate_prompt_tokens": (),
    "detokenize": (True,),
    "chat_template_content_format": ("auto",),
    "documents": ([],),
    "vllm_xargs": ({},),
    "thinking_token_budget": (),
    "background": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "token_ids_logprob": (),
    "input_embeds": (),
    "image_data": (),
    "audio_data": (),
    "video_data": (),
    "session_params": ({},),
    "chat_template": (),
    "include_obfuscation": (False,),
}
# Of these, what OpenAI once called what has another name here.
INSTEAD: Mapping[str, str] = {
    "functions": "tools",
    "function_call": "tool_choice, or tool_calls in a message,",
}


def asks_for_nothing(name: str, value: object, not_yet: NotYet, *, strict: bool) -> bool:
    """Whether a field that no model has holds a value that changes nothing.

    strict: only what is in `not_yet` may.
    """
    if strict and name not in not_yet:
        return False
    return any(_same(value, each) for each in neutral_values(not_yet.get(name, ()), strict=strict))


def neutral_values(known: tuple[object, ...], *, strict: bool) -> list[object]:
    """All values that ask for nothing, of a field whose table has `known`."""
    off = [] if strict or any(_same(True, each) for each in known) else [False]
    return [*known, *off, None]


def _same(value: object, other: object) -> bool:
    """As JSON compares: to Python 0 is False too, while 1.0 is one way to write 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
