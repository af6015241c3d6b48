"""Chat templates of our own that write calls and thoughts in the manner of families of models.

All have one frame; only what a family writes differs.
"""

from __future__ import annotations

_NAME = "{{ call.function.name }}"
_ARGUMENTS = "{{ call.function.arguments | tojson }}"
_VALUE = "{{ value if value is string else value | tojson }}"
# The comment, and what is said to no one, name other families' markers.
_FRAME = """{#- <tool_call>{"name": 1}</tool_call> [TOOL_CALLS] <think></think> -#}
{%- if nothing %}<tool_call>[TOOL_CALLS]</think>{% endif %}
{%- if tools %}<|start|>system
TOOLS{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}<|start|>{{ message.role }}
{% if message.role == "assistant" %}SAID
{%- if message.tool_calls %}BEGIN
{%- for call in message.tool_calls %}CALL{% if not loop.last %}JOIN{% endif %}{% endfor %}END
{%- endif %}{% else %}{{ message.content }}{% endif %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|start|>assistant
OPENS{% endif %}"""


def _written(text: str) -> str:
    """Text that Jinja's own trimming of white space leaves as it is."""
    return text.replace("\n", '{{ "\\n" }}')


def framed(
    call: str = "",
    begin: str = "",
    end: str = "",
    join: str = "",
    *,
    tools: str = "",
    said: str = "{{ message.content }}",
    opens: str = "",
) -> str:
    """A template. call: what one call is written as, or the tools are only listed."""
    parts = {"BEGIN": begin, "CALL": call, "JOIN": join, "END": end, "TOOLS": tools}
    made = _FRAME
    for place, text in (parts | {"OPENS": opens, "SAID": said}).items():
        made = made.replace(place, _written(text) if place != "SAID" else text)
    return made


def fields(before: str, after: str, end: str, join: str = "", value: str = _VALUE) -> str:
    """Arguments one by one, with KEY for the name."""
    items = "{% for key, value in call.function.arguments | items %}"
    written = before + "{{ key }}" + after + value + end.replace("KEY", "{{ key }}")
    return items + written + ("{% if not loop.last %}" + join + "{% endif %}") + "{% endfor %}"


def think(begin: str, end: str, answer: str = "{{ message.content }}") -> str:
    """What an assistant says, where earlier thoughts are written."""
    return (
        "{% if message.reasoning_content %}" + begin + "{{ message.reasoning_content }}" + end
    ) + ("{% endif %}" + answer)


_NS = "]<]minimax[>["
_DS = "｜DSML｜"
# By the name of the format that each shows.
CALLS = {
    "glm45": framed(
        f"\n<tool_call>{_NAME}\n"
        + fields("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
        + "</tool_call>"
    ),
    "glm47": framed(
        f"<tool_call>{_NAME}"
        + fields("<arg_key>", "</arg_key><arg_value>", "</arg_value>")
        + "</tool_call>"
    ),
    "kimi_k2": framed(
        f"<|tool_call_begin|>functions.{_NAME}:{{{{ loop.index0 }}}}"
        f"<|tool_call_argument_begin|>{_ARGUMENTS}<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "minimax_m2": framed(
        f'<invoke name="{_NAME}">\n'
        + fields('<parameter name="', '">', "</parameter>\n")
        + "</invoke>\n",
        "\n<minimax:tool_call>\n",
        "</minimax:tool_call>",
    ),
    "minimax_m3": framed(
        f'{_NS}<invoke name="{_NAME}">'
        + fields(f"{_NS}<", ">", f"{_NS}</KEY>")
        + f"{_NS}</invoke>\n",
        f"{_NS}<tool_call>\n",
        f"{_NS}</tool_call>",
    ),
    "deepseek_v3": framed(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        "{{ call.function.name + '\\n```json\\n' + call.function.arguments + '\\n```' }}"
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "\n",
    ),
    "deepseek_v31": framed(
        f"<｜tool▁call▁begin｜>{_NAME}<｜tool▁sep｜>{_ARGUMENTS}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": framed(
        f'<{_DS}invoke name="{_NAME}">\n'
        + fields(
            f'<{_DS}parameter name="',
            '" string="{{ "true" if value is string else "false" }}">',
            f"</{_DS}parameter>\n",
        )
        + f"</{_DS}invoke>\n",
        f"\n<{_DS}function_calls>\n",
        f"</{_DS}function_calls>",
    ),
    "seed_oss": framed(
        f"\n<seed:tool_call>\n<function={_NAME}>\n"
        + fields("<parameter=", ">", "</parameter>\n")
        + "</function>\n</seed:tool_call>"
    ),
    "minicpm5": framed(
        f'<function name="{_NAME}">' + fields('<param name="', '">', "</param>") + "</function>"
    ),
    "hunyuan_a13b": framed(
        f"<tool_call>{_NAME}\n```json\n{_ARGUMENTS}\n```\n</tool_call>\n",
        "<tool_calls>\n",
        "</tool_calls>",
    ),
    "cohere": framed(
        f'    {{"tool_call_id": "0", "tool_name": "{_NAME}", "parameters": {_ARGUMENTS}}}',
        "<|START_ACTION|>[\n",
        "\n]<|END_ACTION|>",
        ",\n",
    ),
    "apertus": framed(
        f'{{"{_NAME}": {_ARGUMENTS}}}', "<|tools_prefix|>[", "]<|tools_suffix|>", ", "
    ),
    "apriel": framed(
        f'{{"name": "{_NAME}", "arguments": {_ARGUMENTS}}}',
        "\n<tool_calls>[",
        "]</tool_calls>",
        ", ",
    ),
    "gemma4": framed(
        f"<|tool_call>call:{_NAME}"
        '{{ "{" }}'
        + fields(
            "", ":", "", ",", "{{ '<|\"|>' + value + '<|\"|>' if value is string else value }}"
        )
        + "}<tool_call|>"
    ),
    "functionary": framed(f"{_NAME}\n{_ARGUMENTS}", join=">>>", opens=">>>").replace(
        "<|start|>{{ message.role }}\n", "<|start|>{{ message.role }}\n>>>"
    ),
    # These only list the tools, and never write a call.
    "granite": framed(tools="Answer with <|tool_call|> and a list. "),
    "lfm2": framed(tools="List of tools: <|tool_list_start|>"),
    "olmo3": framed(tools="Write calls within <function_calls></function_calls>. "),
    "gemma3": "{% for message in messages %}<start_of_turn>{{ message.role }}\n"
    "{{ message.content }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n",
}
_STRIPPED = "{{ message.content.split('</think>')[-1] }}"
# By the name of the thoughts that each shows, and what tells them.
THOUGHTS = {
    ("mistral", "writes"): framed(said=think("[THINK]", "[/THINK]")),
    ("seed_oss", "writes"): framed(said=think("<seed:think>", "</seed:think>")),
    ("minimax_m3", "writes"): framed(said=think("<mm:think>", "</mm:think>")),
    ("gemma4", "writes"): framed(said=think("<|channel>thought\\n", "<channel|>")),
    ("apertus", "writes"): framed(said=think("<|inner_prefix|>", "<|inner_suffix|>")),
    ("cohere_command3", "writes"): framed(
        said=think(
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|>",
        )
    ),
    ("cohere", "writes"): framed(
        said=think(
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_TEXT|>{{ message.content }}<|END_TEXT|>",
        )
    ),
    ("granite", "writes"): framed(
        said=think("<think>", "</think>", "<response>{{ message.content }}</response>")
    ),
    ("apriel", "writes"): framed(
        said=think(
            "Here are my reasoning steps:\\n",
            "\\n[BEGIN FINAL RESPONSE]\\n",
            "{{ message.content }}\\n[END FINAL RESPONSE]",
        )
    ),
    ("qwen3", "writes"): framed(said=think("<think>", "</think>")),
    ("qwen3", "opens"): framed(opens="<think>\n"),
    ("qwen3", "strips"): framed(said=_STRIPPED),
    ("none", "knows none"): framed(),
}
