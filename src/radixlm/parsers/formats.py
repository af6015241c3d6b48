"""The table of all formats of calls, by the names that vLLM and SGLang have for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from radixlm.parsers import families
from radixlm.parsers.call_format import CallFormat
from radixlm.parsers.harmony import HARMONY

AUTO = "auto"
FORMATS: Final[Mapping[str, CallFormat]] = {
    "hermes": families.HERMES,
    "qwen": families.HERMES,
    "qwen25": families.HERMES,
    "ernie45": families.HERMES,
    "granite4": families.HERMES,
    "internlm": families.HERMES,
    "smollm3": families.HERMES,
    "llama3": families.LLAMA,
    "llama3_json": families.LLAMA,
    "llama4_json": families.LLAMA,
    "mistral": families.MISTRAL,
    "mistral_named": families.MISTRAL_NAMED,
    "pythonic": families.PYTHONIC,
    "llama4_pythonic": families.PYTHONIC,
    "qwen3_coder": families.QWEN_CODER,
    "qwen3_xml": families.QWEN_CODER,
    "step3p5": families.QWEN_CODER,
    "nemotron_v3": families.QWEN_CODER,
    "seed_oss": families.SEED,
    "glm45": families.GLM45,
    "glm": families.GLM45,
    "glm47": families.GLM47,
    "glm4": families.GLM4,
    "minimax_m2": families.MINIMAX,
    "minimax-m2": families.MINIMAX,
    "minimax_m3": families.MINIMAX_M3,
    "minicpm5": families.MINICPM,
    "kimi_k2": families.KIMI,
    "deepseek_v3": families.DEEPSEEK,
    "deepseekv3": families.DEEPSEEK,
    "deepseek_v31": families.DEEPSEEK31,
    "deepseekv31": families.DEEPSEEK31,
    "deepseek_objects": families.DEEPSEEK_OBJECTS,
    "deepseek_v32": families.DEEPSEEK32,
    "deepseekv32": families.DEEPSEEK32,
    "deepseek_v4": families.DEEPSEEK4,
    "phi4_mini_json": families.PHI4,
    "granite": families.GRANITE,
    "cohere": families.COHERE,
    "command_r_plus": families.COHERE_PLUS,
    "apertus": families.APERTUS,
    "apriel": families.APRIEL,
    "nemotron": families.NEMOTRON,
    "hunyuan_a13b": families.HUNYUAN,
    "lfm2": families.LFM2,
    "olmo3": families.OLMO3,
    "gemma3": families.GEMMA,
    "gemma4": families.GEMMA4,
    "functionary_v3_1": families.FUNCTIONARY31,
    "functionary": families.FUNCTIONARY,
    "firefunction": families.FIREFUNCTION,
    "gigachat3": families.GIGACHAT,
    "gigachat31": families.GIGACHAT31,
    "gpt-oss": HARMONY,
    "openai": HARMONY,
    "json": families.JSON,
}
