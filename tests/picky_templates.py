"""Chat templates that refuse or leave out something, each in the manner of a family, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from tests import chat_templates

_ALTERNATE = """{%- for m in messages %}
{%- if (m.role == "user") != (loop.index0 % 2 == 0) %}
{{- raise_exception("roles must alternate") }}
{%- endif %}
{%- endfor %}"""
_TURNS = """{%- for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
_CALLS = """{%- for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}"""
_TOOLS = """{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"""

# No system messages, users and answers in turn.
FOLDED = (
    """{%- if messages[0].role == "system" %}{{ raise_exception("no system") }}{% endif %}"""
    + _ALTERNATE
    + _TURNS
)
# One system message, which must come first.
FIRST = (
    _TOOLS
    + """{%- for m in messages %}
{%- if m.role == "system" and not loop.first %}{{ raise_exception("system first") }}{% endif %}
<{{ m.role }}>{{ m.content }}"""
    + _CALLS
    + """</{{ m.role }}>
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
)
# The last system message is the only one, and it stands in front of all.
LAST = """{%- set ns = namespace(system="") %}
{%- for m in messages if m.role == "system" %}{% set ns.system = m.content %}{% endfor %}
{{- ns.system }}
{%- for m in messages if m.role != "system" %}<{{ m.role }}>{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
# A user is needed.
ASKED = (
    """{%- if not messages | selectattr("role", "equalto", "user") | list %}
{{- raise_exception("no user query") }}
{%- endif %}"""
    + _TURNS
)
# One call a message, without text beside it, whose result follows; thoughts have another name, and
# are left out once an answer without calls comes.
CHANNELS = (
    _TOOLS
    + """{%- for m in messages %}
{%- if m.role == "assistant" and m.tool_calls %}
{%- set later = namespace(answer=false) %}
{%- for each in messages[loop.index:] if each.role == "assistant" and "tool_calls" not in each %}
{%- set later.answer = true %}
{%- endfor %}
{%- if m.thinking and m.content %}{{ raise_exception("thoughts or text") }}{% endif %}
{%- if m.thinking and not later.answer %}<analysis>{{ m.thinking }}{% endif %}
{{- "<to " + m.tool_calls[0].function.name + ">" + m.tool_calls[0].function.arguments | tojson }}
{%- elif m.role == "assistant" %}<final>{{ m.content }}
{%- elif m.role == "tool" %}<result>{{ m.content | tojson }}
{%- elif m.role == "user" or loop.first %}<{{ m.role }}>{{ m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
)
# Ids of nine letters, roles in turn but for calls and results, and no empty answers.
NINE = """{%- set ns = namespace(turn=0) %}
{%- if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}
{%- for m in messages %}
{%- if m.role == "user" or m.role == "assistant" and not m.tool_calls %}
{%- if (m.role == "user") != (ns.turn % 2 == 0) %}{{ raise_exception("in turn") }}{% endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- endif %}
{%- if m.role == "user" %}[INST]{{ m.content }}[/INST]
{%- elif m.role == "tool" %}[RESULT]{{ m.content }}[ID]{{ m.tool_call_id }}[/RESULT]
{%- elif m.role == "assistant" %}
{%- if m.content == "" and not m.tool_calls %}{{ raise_exception("empty") }}{% endif %}
{%- if m.content is string %}{{ m.content }}
{%- else %}
{%- for part in m.content %}
{{- "[THINK]" + part.thinking + "[/THINK]" if part.type == "thinking" else part.text }}
{%- endfor %}
{%- endif %}
{%- for c in m.tool_calls or [] %}
{%- if c.id | length != 9 %}{{ raise_exception("nine letters") }}{% endif %}
{{- "[CALL]" + c.function.name + c.function.arguments | tojson + "[ID]" + c.id }}
{%- endfor %}</s>
{%- else %}{{ raise_exception("no such role") }}
{%- endif %}
{%- endfor %}"""
# Ids that say which function is called.
NAMED_IDS = (
    _TOOLS
    + """{%- for m in messages %}<{{ m.role }}>
{%- if m.role == "tool" %}of {{ m.tool_call_id }}: {% endif %}
{%- if m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}<call {{ c.id }}>{{ c.function.arguments | tojson }}{% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant><think>{% endif %}"""
)
# Arguments as JSON text, no list of tools, and thoughts that stand in the text.
SPELLED = """{%- set ns = namespace(queue=[]) %}
{%- for m in messages %}<{{ m.role }}>
{%- if m.role == "assistant" and m.tool_calls %}{{ m.content }}
{%- for c in m.tool_calls %}
{%- set _ = ns.queue.append(c.function.name) %}
{{- "<call>" + c.function.name + "\\n" + c.function.arguments + "</call>" }}
{%- endfor %}
{%- elif m.role == "tool" %}{{ ns.queue[-1] }}: {{ m.content }}
{%- else %}{{ m.content.split("</think>")[-1] }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant><think>
{% endif %}"""
# Results are closed by an answer, or the prompt's end.
UNCLOSED = """{%- for m in messages %}<{{ m.role }}>{{ m.content }}
{%- for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}
{%- if m.role == "tool" and (loop.last or loop.nextitem.role == "assistant") %}</tools>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
# Descriptions are needed; without tools, an empty list is.
NEEDY = (
    """{%- for tool in tools %}
{{- tool.function.name + ": " + tool.function.description + "\\n" }}
{%- for name, schema in tool.function.parameters.properties | items %}
{{- name + ": " + schema.description + "\\n" }}
{%- endfor %}
{%- endfor %}
{%- for m in messages %}
{%- set m.content = "<" + m.role + ">" + m.content %}
{{- m.content }}"""
    + _CALLS
    + """{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
)
# Calls of earlier answers are left out, and so is what tools gave.
DEAF = (
    _TOOLS
    + """{%- for m in messages if m.role in ("system", "user", "assistant") %}
{{- "<" + m.role + ">" + m.content }}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
)

STYLES: Mapping[str, str] = {
    "folded": FOLDED,
    "first": FIRST,
    "last": LAST,
    "asked": ASKED,
    "channels": CHANNELS,
    "nine": NINE,
    "named ids": NAMED_IDS,
    "spelled": SPELLED,
    "unclosed": UNCLOSED,
    "needy": NEEDY,
    "deaf": DEAF,
    "hermes": chat_templates.HERMES,
    "thinking": chat_templates.THINKING,
    "llama": chat_templates.LLAMA,
    "mistral": chat_templates.MISTRAL,
    "mistral named": chat_templates.MISTRAL_NAMED,
    "pythonic": chat_templates.PYTHONIC,
    "qwen coder": chat_templates.QWEN_CODER,
}
