"""The formats of calls that families of models were taught, each declared once.

A new one is a declaration and its names in `FORMATS`; how models show it is found by itself.
"""

from __future__ import annotations

from dataclasses import replace

from radixlm.parsers.call_format import CallFormat, FieldCall, JsonCall, NamedCall

# Objects in a list, as most families write several calls.
_LIST = CallFormat(opens="[", join=", ", closes="]")
# Source: https://github.com/NousResearch/Hermes-Function-Calling
HERMES = CallFormat(begin="<tool_call>", opens="\n", closes="\n", end="</tool_call>", again="\n")
# For models that show no format; many learnt Hermes' all the same.
JSON = CallFormat(
    join="\n",
    also=(HERMES,),
    never_begins=r"(\s*(```(json)?\s*)?(\[\s*)?\{|(?s:.*)<tool_call>)",
    described=False,
)
# Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/
LLAMA_TAGGED = CallFormat(call=JsonCall(arguments="parameters"), begin="<|python_tag|>", join="; ")
# Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_2/
PYTHON_CALL = FieldCall(after="(", key_after="=", join=", ", closes=")")
PYTHONIC_TAGGED = replace(
    _LIST,
    call=PYTHON_CALL,
    begin="<|python_start|>",
    end="<|python_end|>",
)
PYTHONIC = replace(
    _LIST,
    call=PYTHON_CALL,
    also=(PYTHONIC_TAGGED,),
    signs=("[func_name1(params_name1=params_value1",),
    never_begins=r"\s*(<\|python_start\|>\s*)?\[\s*[A-Za-z0-9_.\-]+\(",
)
# The form of users' own tools in Llama's guide.
_LLAMA_FUNCTION = CallFormat(
    call=NamedCall(after=">", closes="</function>"), begin="<function=", again=""
)
LLAMA = CallFormat(
    call=JsonCall(arguments="parameters"),
    join="; ",
    also=(LLAMA_TAGGED, _LLAMA_FUNCTION, replace(PYTHONIC, also=(), signs=())),
    never_begins=r"(\s*\{|\s*\[\s*[A-Za-z0-9_.\-]+\(|(?s:.*)(<\|python_tag\|>|<function=))",
)
# Mistral's templates take only ids of nine letters or digits.
# Source: https://docs.mistral.ai/guides/tokenization/
_MISTRAL_NAMED = CallFormat(
    call=NamedCall(id_marker="[CALL_ID]", after="[ARGS]"),
    begin="[TOOL_CALLS]",
    again="",
    id_prefix="",
    id_length=9,
)
MISTRAL = CallFormat(
    begin="[TOOL_CALLS]",
    opens=" [",
    join=", ",
    closes="]",
    id_prefix="",
    id_length=9,
    also=(_MISTRAL_NAMED,),
)
MISTRAL_NAMED = replace(_MISTRAL_NAMED, also=(replace(MISTRAL, also=()),))
# Source: https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct
QWEN_CODER = replace(
    HERMES,
    call=FieldCall(
        before="<function=",
        after=">\n",
        key_before="<parameter=",
        key_after=">",
        pad="\n",
        value_end="</parameter>\n",
        closes="</function>",
    ),
)
SEED = replace(
    QWEN_CODER,
    begin="<seed:tool_call>",
    end="</seed:tool_call>",
    call=FieldCall(
        before="<function=",
        after=">\n",
        key_before="<parameter=",
        key_after=">",
        value_end="</parameter>\n",
        closes="</function>",
    ),
)
MINICPM = CallFormat(
    call=FieldCall(
        after='">',
        key_before='<param name="',
        key_after='">',
        value_end="</param>",
        closes="</function>",
        cdata=True,
    ),
    begin='<function name="',
    again="\n",
)
GLM_CALL = FieldCall(
    after="\n",
    key_before="<arg_key>",
    key_after="</arg_key>\n<arg_value>",
    value_end="</arg_value>\n",
)
GLM45 = CallFormat(call=GLM_CALL, begin="<tool_call>", end="</tool_call>", again="\n")
GLM47 = CallFormat(
    call=FieldCall(
        after="",
        key_before="<arg_key>",
        key_after="</arg_key><arg_value>",
        value_end="</arg_value>",
    ),
    begin="<tool_call>",
    end="</tool_call>",
    again="",
)
# Source: https://huggingface.co/THUDM/GLM-4-9B-0414
GLM4 = CallFormat(
    call=NamedCall(after="\n"),
    signs=("在调用上述函数时，请使用 Json 格式表示调用的参数",),
    never_begins=r"\s*[\w.-]+\n\s*\{",
)
# Source: https://huggingface.co/MiniMaxAI/MiniMax-M2/blob/main/docs/tool_calling_guide.md
MINIMAX = CallFormat(
    call=FieldCall(
        before='<invoke name="',
        after='">\n',
        key_before='<parameter name="',
        key_after='">',
        value_end="</parameter>\n",
        closes="</invoke>",
    ),
    begin="<minimax:tool_call>",
    opens="\n",
    join="\n",
    closes="\n",
    end="</minimax:tool_call>",
)
_NAMESPACE = "]<]minimax[>["
MINIMAX_M3 = CallFormat(
    call=FieldCall(
        before=_NAMESPACE + '<invoke name="',
        after='">',
        key_before=_NAMESPACE + "<",
        key_after=">",
        value_end=_NAMESPACE + "</{key}>",
        closes=_NAMESPACE + "</invoke>",
        nested=True,
    ),
    begin=_NAMESPACE + "<tool_call>",
    opens="\n",
    join="\n",
    closes="\n",
    end=_NAMESPACE + "</tool_call>",
)
# Source: https://huggingface.co/moonshotai/Kimi-K2-Instruct/blob/main/docs/tool_call_guidance.md
KIMI = CallFormat(
    call=NamedCall(
        before="<|tool_call_begin|>",
        spelled="functions.{name}:{place}",
        after="<|tool_call_argument_begin|>",
        closes="<|tool_call_end|>",
    ),
    begin="<|tool_calls_section_begin|>",
    join="",
    end="<|tool_calls_section_end|>",
)
_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _ONE_END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
# Source: https://huggingface.co/deepseek-ai/DeepSeek-V3.1
DEEPSEEK31 = CallFormat(
    call=NamedCall(before=_ONE, after=_SEP, closes=_ONE_END),
    begin=_SECTION,
    join="",
    end=_SECTION_END,
)
DEEPSEEK = CallFormat(
    call=NamedCall(before=f"{_ONE}function{_SEP}", after="\n```json\n", closes=f"\n```{_ONE_END}"),
    begin=_SECTION,
    join="\n",
    end=_SECTION_END,
)
DEEPSEEK_OBJECTS = CallFormat(
    call=JsonCall(arguments="parameters"),
    begin=_SECTION,
    opens=_ONE,
    closes=_ONE_END,
    end=_SECTION_END,
)
_DSML = "｜DSML｜"
DEEPSEEK32 = CallFormat(
    call=FieldCall(
        before=f'<{_DSML}invoke name="',
        after='">\n',
        key_before=f'<{_DSML}parameter name="',
        key_after='" string="true">',
        json_after='" string="false">',
        value_end=f"</{_DSML}parameter>\n",
        closes=f"</{_DSML}invoke>",
    ),
    begin=f"<{_DSML}function_calls>",
    opens="\n",
    join="\n",
    closes="\n",
    end=f"</{_DSML}function_calls>",
)
DEEPSEEK4 = replace(DEEPSEEK32, begin=f"<{_DSML}tool_calls>", end=f"</{_DSML}tool_calls>")
# Source: https://huggingface.co/ibm-granite/granite-3.3-2b-instruct
GRANITE = replace(_LIST, begin="<|tool_call|>", signs=("<|tool_call|>",))
PHI4 = replace(
    _LIST,
    begin="<|tool_call|>",
    end="<|/tool_call|>",
    signs=("<|/tool_call|>", "<|/tool|>"),
)
COHERE = CallFormat(
    call=JsonCall(name="tool_name", arguments="parameters"),
    begin="<|START_ACTION|>",
    opens="[\n    ",
    join=",\n    ",
    closes="\n]",
    end="<|END_ACTION|>",
)
COHERE_PLUS = CallFormat(
    call=JsonCall(name="tool_name", arguments="parameters"),
    begin="Action:",
    opens="\n```json\n[\n    ",
    join=",\n    ",
    closes="\n]",
    end="```",
    signs=("Write 'Action:' followed by a json-formatted list",),
)
# Source: https://huggingface.co/swiss-ai/Apertus-8B-Instruct-2509
APERTUS = replace(
    _LIST,
    call=JsonCall(name=""),
    begin="<|tools_prefix|>",
    end="<|tools_suffix|>",
)
APRIEL = replace(_LIST, begin="<tool_calls>", end="</tool_calls>")
NEMOTRON = replace(_LIST, begin="<TOOLCALL>", end="</TOOLCALL>", signs=("<TOOLCALL>",))
FIREFUNCTION = replace(_LIST, begin="functools", signs=("functools[",))
# Source: https://huggingface.co/tencent/Hunyuan-A13B-Instruct
HUNYUAN = CallFormat(
    call=NamedCall(before="<tool_call>", after="\n```json\n", closes="\n```\n</tool_call>"),
    begin="<tool_calls>",
    opens="\n",
    join="\n",
    closes="\n",
    end="</tool_calls>",
    also=(APRIEL,),
)
# Source: https://huggingface.co/LiquidAI/LFM2-8B-A1B
LFM2 = replace(
    PYTHONIC_TAGGED,
    begin="<|tool_call_start|>",
    end="<|tool_call_end|>",
    signs=("<|tool_list_start|>", "List of tools: ["),
)
OLMO3 = CallFormat(
    call=PYTHON_CALL,
    begin="<function_calls>",
    opens="\n",
    join="\n",
    closes="\n",
    end="</function_calls>",
    signs=("<function_calls>",),
)
# Source: https://ai.google.dev/gemma/docs/capabilities/function-calling
_TOOL_CODE = CallFormat(
    call=PYTHON_CALL, begin="```tool_code", opens="\n", join="\n", closes="\n", end="```"
)
GEMMA = replace(JSON, also=(_TOOL_CODE, HERMES), signs=("<start_of_turn>",))
GEMMA4 = CallFormat(
    call=FieldCall(before="call:", after="{", key_after=":", join=",", closes="}", quote='<|"|>'),
    begin="<|tool_call>",
    again="",
    end="<tool_call|>",
)
# Source: https://github.com/MeetKai/functionary
FUNCTIONARY31 = replace(_LLAMA_FUNCTION, signs=("<function=example_function_name>",))
FUNCTIONARY = CallFormat(call=NamedCall(after="\n"), begin=">>>", again="", plain="all\n")
# Source: https://huggingface.co/ai-sage/GigaChat3-10B-A1.8B
GIGACHAT = CallFormat(
    begin="<|message_sep|>\n\nfunction call<|role_sep|>",
    opens="\n",
    also=(CallFormat(begin="<|function_call|>"),),
)
GIGACHAT31 = CallFormat(begin="<|function_call|>")
