"""A query and a document as one prompt, for a model that scores the two."""

from __future__ import annotations

import re

from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer

# Source: https://huggingface.co/Qwen/Qwen3-Reranker-0.6B, "Transformers Usage".
_JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {{ messages | selectattr('role', 'eq', 'system') | "
    "map(attribute='content') | first | default('Given a web search query, retrieve relevant "
    "passages that answer the query') }}\n<Query>: {{ messages[-2].content }}\n<Document>: "
    "{{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant\n"
    "{{ '<think>\n\n</think>\n\n' }}"
)


class PairTemplate:
    """Writes pairs by a chat template that has the roles query and document. Instruction, query and
    document stand in this order in those that are known, so prompts share all but the document.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    @classmethod
    def of(cls, template: ChatTemplate | None, *, judges: bool) -> PairTemplate | None:
        """The model's own; where that is for chats alone, and the model judges as Qwen3-Reranker
        does, that one's; None: the tokenizer joins the two.
        """
        source = "" if template is None else template.source
        roles = all(re.search(rf"""["']{role}["']""", source) for role in ("query", "document"))
        if template is not None and roles:
            return cls(template)
        return cls(ChatTemplate(_JUDGE)) if judges else None

    def render(
        self, tokenizer: Tokenizer, mark: str, query: str, document: str, instruction: str
    ) -> str:
        """The prompt's text, special tokens included. mark: see `ChatTemplate.plain_text`.
        instruction: what makes a document fit; empty: the template's own.
        """
        said = [("system", instruction), ("query", query), ("document", document)]
        plain = [
            self._template.plain_text(tokenizer, mark, {"role": role, "content": text})
            for role, text in said
            if text or role != "system"
        ]
        return self._template.render(plain)
