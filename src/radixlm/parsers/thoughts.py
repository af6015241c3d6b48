"""How a family of models writes what it thinks before it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """Reasoning stands between `begin` and `end`, and then the answer.

    answer_begin, answer_end: what may stand around the answer, and belongs to neither.
    always: also without `begin`, unless the prompt closed it.
    signs: texts in a prompt, by which a template shows them that writes none.
    """

    begin: str = "<think>"
    end: str = "</think>"
    answer_begin: str = ""
    answer_end: str = ""
    always: bool = False
    signs: tuple[str, ...] = ()

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt's end leaves reasoning open."""
        prompt = prompt.rstrip()
        if self.always:
            return not self.closed_by(prompt)
        return bool(self.begin) and prompt.endswith(self.begin.strip())

    def closed_by(self, prompt: str) -> bool:
        """Whether the prompt's end closed reasoning: none is to come."""
        return prompt.rstrip().endswith(self.end.strip())

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.begin, self.end, self.answer_begin, self.answer_end)


THINK = Thoughts()
ALWAYS = replace(THINK, always=True)
MISTRAL = Thoughts(begin="[THINK]", end="[/THINK]")
SEED = Thoughts(begin="<seed:think>", end="</seed:think>")
COHERE = Thoughts(
    begin="<|START_THINKING|>",
    end="<|END_THINKING|>",
    answer_begin="<|START_RESPONSE|>",
    answer_end="<|END_RESPONSE|>",
)
COHERE_TEXT = replace(COHERE, answer_begin="<|START_TEXT|>", answer_end="<|END_TEXT|>")
MINIMAX_M3 = Thoughts(begin="<mm:think>", end="</mm:think>")
GEMMA4 = Thoughts(begin="<|channel>thought\n", end="<channel|>")
GRANITE = replace(THINK, answer_begin="<response>", answer_end="</response>")
HUNYUAN = replace(THINK, answer_begin="<answer>", answer_end="</answer>")
APERTUS = Thoughts(
    begin="<|inner_prefix|>", end="<|inner_suffix|>", signs=("Deliberation: enabled",)
)
MARCO = Thoughts(
    begin="<Thought>",
    end="</Thought>",
    answer_begin="<Output>",
    answer_end="</Output>",
    signs=("<Thought>",),
)
APRIEL = Thoughts(
    begin="Here are my reasoning steps:\n",
    end="[BEGIN FINAL RESPONSE]",
    answer_end="[END FINAL RESPONSE]",
    always=True,
)
KIMI_VL = Thoughts(begin="◁think▷", end="◁/think▷")

# By the names that vLLM and SGLang have for them; None: reasoning is left in the answer.
THOUGHTS: Final[Mapping[str, Thoughts | None]] = {
    "none": None,
    "qwen3": THINK,
    "deepseek_v3": THINK,
    "deepseek-v3": THINK,
    "ernie45": THINK,
    "glm45": THINK,
    "kimi_k2": THINK,
    "minimax_m2": THINK,
    "minimax": THINK,
    "nemotron_v3": THINK,
    "olmo3": THINK,
    "step3p5": THINK,
    "deepseek-r1": ALWAYS,
    "deepseek_r1": ALWAYS,
    "qwen3-thinking": ALWAYS,
    "step3": ALWAYS,
    "mistral": MISTRAL,
    "seed_oss": SEED,
    "cohere_command3": COHERE,
    "cohere": COHERE_TEXT,
    "minimax_m3": MINIMAX_M3,
    "gemma4": GEMMA4,
    "granite": GRANITE,
    "hunyuan_a13b": HUNYUAN,
    "hunyuan": HUNYUAN,
    "apertus": APERTUS,
    "apriel": APRIEL,
    "kimi": KIMI_VL,
    "marco_o1": MARCO,
}
