"""Chat templates that write tools as the families of models do, for tests.

Sources: https://qwen.readthedocs.io/en/latest/framework/function_call.html,
https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/,
https://docs.mistral.ai/guides/tokenization/,
https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_2/,
https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct
"""

from __future__ import annotations

# Those that models of some of these families have as special tokens.
MARKERS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"),
    *("<|python_tag|>", "<|python_start|>", "<|python_end|>"),
)

HERMES = """{%- if tools %}<|start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}

{% endif %}# Tools

Function signatures are within <tools></tools> XML tags:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>

For each call return a json object within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|end|>
{% elif messages[0].role == "system" %}<|start|>system
{{ messages[0].content }}<|end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "user" or (message.role == "system" and not loop.first) %}
<|start|>{{ message.role }}
{{ message.content }}<|end|>
{% elif message.role == "assistant" %}
<|start|>assistant
{{ message.content }}
{%- for call in message.tool_calls or [] %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|end|>
{% elif message.role == "tool" %}
<|start|>user
<tool_response>
{{ message.content }}
</tool_response><|end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}"""

# A model that may think, and is kept from it by thoughts that are there and empty.
THINKING = HERMES.replace(
    "{%- if add_generation_prompt %}<|start|>assistant\n{% endif %}",
    "{%- if add_generation_prompt %}<|start|>assistant\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}\n"
    "<think>\n\n</think>\n\n{%- elif open_thinking %}\n<think>\n{% endif %}{% endif %}",
)

LLAMA = """{{ bos_token }}<|start_header_id|>system<|end_header_id|>

Environment: ipython
{% if messages[0].role == "system" %}{{ messages[0].content }}{% endif %}<|eot_id|>
{%- for message in messages %}
{%- if message.role == "user" %}<|start_header_id|>user<|end_header_id|>

{% if loop.first and tools %}Given the following functions, please respond with a JSON for a call.
Respond in the format {"name": function name, "parameters": dictionary of arguments}.

{% for tool in tools %}{{ tool | tojson(indent=4) }}

{% endfor %}{% endif %}{{ message.content }}<|eot_id|>
{%- elif message.role == "assistant" and message.tool_calls %}
{%- if message.tool_calls | length != 1 %}
{{- raise_exception("This model only supports single tool-calls at once!") }}
{%- endif %}
{%- set call = message.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- elif message.role == "assistant" %}<|start_header_id|>assistant<|end_header_id|>

{{ message.content }}<|eot_id|>
{%- elif message.role == "tool" %}<|start_header_id|>ipython<|end_header_id|>

{{ message.content | tojson }}<|eot_id|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

MISTRAL = """{{ bos_token }}
{%- for message in messages %}
{%- if message.role == "user" %}
{%- if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- "[INST] " + message.content + "[/INST]" }}
{%- elif message.role == "assistant" and message.tool_calls %}
{{- "[TOOL_CALLS] [" }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}
{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- ', "id": "' + call.id + '"}' }}
{{- ", " if not loop.last else "]" + (eos_token or "") }}
{%- endfor %}
{%- elif message.role == "assistant" %} {{ message.content }}{{ eos_token }}
{%- elif message.role == "tool" %}
{{- '[TOOL_RESULTS] {"content": ' + message.content | tojson }}
{{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""

MISTRAL_NAMED = """{{ bos_token }}
{%- for message in messages %}
{%- if message.role == "user" %}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- "[INST]" + message.content + "[/INST]" }}
{%- elif message.role == "assistant" %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- "[TOOL_CALLS]" + call.function.name + "[ARGS]" + call.function.arguments | tojson }}
{%- endfor %}
{{- eos_token }}
{%- elif message.role == "tool" %}
{{- "[TOOL_RESULTS]" + message.content + "[/TOOL_RESULTS]" }}
{%- endif %}
{%- endfor %}"""

PYTHONIC = """{{ bos_token }}<|start_header_id|>system<|end_header_id|>

{% if tools %}To call functions, respond with a python list of the calls, in the format
[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]

{% for tool in tools %}{{ tool | tojson(indent=4) }}

{% endfor %}{% endif %}
{%- if messages[0].role == "system" %}{{ messages[0].content }}{% endif %}<|eot_id|>
{%- for message in messages %}
{%- if message.role == "user" %}<|start_header_id|>user<|end_header_id|>

{{ message.content }}<|eot_id|>
{%- elif message.role == "assistant" and message.tool_calls %}
{{- "<|start_header_id|>assistant<|end_header_id|>\n\n[" }}
{%- for call in message.tool_calls %}
{{- call.function.name + "(" }}
{%- for name, value in call.function.arguments | items %}
{{- name + "=" + value | tojson + ("" if loop.last else ", ") }}
{%- endfor %}
{{- ")" + ("" if loop.last else ", ") }}
{%- endfor %}
{{- "]<|eot_id|>" }}
{%- elif message.role == "assistant" %}<|start_header_id|>assistant<|end_header_id|>

{{ message.content }}<|eot_id|>
{%- elif message.role == "tool" %}<|start_header_id|>ipython<|end_header_id|>

{{ {"output": message.content} | tojson }}<|eot_id|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

# As Llama 4 may write it.
PYTHONIC_TAGGED = PYTHONIC.replace('\n\n["', '\n\n<|python_start|>["').replace(
    '"]<|eot_id|>"', '"]<|python_end|><|eot_id|>"'
)

QWEN_CODER = """{%- if tools or messages[0].role == "system" %}<|start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}{% endif %}
{%- if tools %}

# Tools

<tools>
{%- for tool in tools %}
<function>
<name>{{ tool.function.name }}</name>
<parameters>{{ tool.function.parameters | tojson }}</parameters>
</function>
{%- endfor %}
</tools>

Call a function in this format and no other:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
</function>
</tool_call>{% endif %}<|end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "user" or (message.role == "system" and not loop.first) %}
<|start|>{{ message.role }}
{{ message.content }}<|end|>
{% elif message.role == "assistant" %}
<|start|>assistant
{{- "\n" + message.content if message.content else "" }}
{%- for call in message.tool_calls or [] %}

<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>
{%- endfor %}<|end|>
{% elif message.role == "tool" %}
<|start|>user
<tool_response>
{{ message.content }}
</tool_response><|end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}"""

# Messages in channels, of which each has one call at most.
HARMONY = """<|start|>system<|message|>Valid channels: analysis, commentary, final.<|end|>
{%- if tools or messages[0].role == "system" %}<|start|>developer<|message|>
{%- if messages[0].role == "system" %}{{ messages[0].content }}{% endif %}
{%- if tools %}# Tools
{%- for tool in tools %}
type {{ tool.function.name }} = (_: {{ tool.function.parameters | tojson }}) => any;
{%- endfor %}{% endif %}<|end|>{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}<|start|>user<|message|>{{ message.content }}<|end|>
{%- elif message.role == "assistant" and message.tool_calls %}
{%- if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>
{{- message.thinking }}<|end|>{% endif %}
{%- set call = message.tool_calls[0].function %}<|start|>assistant to=functions.{{ call.name -}}
<|channel|>commentary json<|message|>{{ call.arguments | tojson }}<|call|>
{%- elif message.role == "assistant" %}<|start|>assistant<|channel|>final<|message|>
{{- message.content }}<|end|>
{%- elif message.role == "tool" %}<|start|>functions to=assistant<|channel|>commentary<|message|>
{{- message.content | tojson }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
