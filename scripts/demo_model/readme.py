"""The model card: what the model can do, how well, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .evaluation import Report
from .model import CONTEXT, HEADS, HIDDEN, KV_HEADS, LAYERS
from .tokenizer import VOCAB

_CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: text-generation
---

# RadixLM's demo model

A very small chat model, so that `radixlm serve` and `radixlm.Engine` work at once, without a
download. It knows capitals and a few hundred other facts, adds numbers from 0 to 99, counts,
makes lists, remembers what you told it earlier in the chat, and tells tiny stories. Asked for
anything else, it says that it does not know. It is made to show an engine at work: do not rely
on anything it says.

- Llama architecture, {parameters:,} parameters in bfloat16: {layers} layers, hidden size {hidden},
  {heads} heads over {kv_heads} key/value heads, vocabulary {vocab:,}, context {context:,} tokens.
- The chat template writes `<|bos|>`; the tokenizer adds nothing on its own, and plain completions
  take no `<|bos|>`. Each message is `<|role|>text<|eos|>`, so the next turn's prompt begins with
  exactly the tokens of this turn.
- Every word of its training text is written by `scripts/demo_model/`; no other data went in.

## Accuracy

Greedy, bfloat16, through `transformers`; an answer counts only when it is exactly right, word for
word. Half of the short chats have a system prompt (up to a few hundred tokens of rules), a third of
the questions come in the middle of a chat. "Held out" was never trained on.

| what | right | of |
|---|---:|---:|
{rows}

{weak}

## Three chats

{chats}

## Making it again

```
python scripts/train_demo_model.py
```

needs `torch`, `transformers`, `tokenizers`, `safetensors` and `tqdm`; two CPU cores are enough.
This one: {training_tokens:,} training tokens in {steps:,} steps and {sessions} session(s),
{training_minutes} minutes of training in all, last seed {seed}. More than one session means
`--resume`: the mix of text was tuned between them, and one fresh run uses the final mix throughout.
The text is seeded; the time limit is not, so another machine sees a little more or less of it
(`--steps` fixes that). `--evaluate-only` measures the folder as it is.

Licence: Apache-2.0, as RadixLM.
"""


def _weak(accuracy: Mapping[str, float]) -> str:
    """Says plainly what fell short."""
    names = [f"{name} ({100 * value:.1f} %)" for name, value in accuracy.items() if value < 0.9]
    return f"Below 90 %: {'; '.join(names)}." if names else "Nothing is below 90 %."


def write_readme(folder: Path, made: Mapping[str, float], report: Report) -> None:
    rows = "\n".join(
        f"| {name} | {100 * value:.1f} % | {report.counts[name]} |"
        for name, value in report.accuracy.items()
    )
    chats = "\n\n".join(
        "```\n" + "\n".join(f"{role}: {text}" for role, text in messages) + "\n```"
        for messages in report.samples
    )
    (folder / "README.md").write_text(
        _CARD.format(
            rows=rows, weak=_weak(report.accuracy), chats=chats, layers=LAYERS, hidden=HIDDEN,
            heads=HEADS, kv_heads=KV_HEADS,
            vocab=VOCAB, context=CONTEXT, **made,
        )
    )  # fmt: skip
