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

A very small chat model, so that `radixlm serve` and `radixlm.Engine` work without a download.
It knows capitals and a few hundred other facts, adds numbers from 0 to 99, counts, makes lists,
remembers what you said earlier in the chat, and tells tiny stories. To anything else it answers
that it does not know. Do not rely on what it says.

- Llama architecture, {parameters:,} parameters in bfloat16: {layers} layers, hidden size {hidden},
  {heads} heads over {kv_heads} key/value heads, vocabulary {vocab:,}, context {context:,} tokens.
- The chat template writes `<|bos|>`, the tokenizer does not, and plain completions take none.
  Each message is `<|role|>text<|eos|>`, so the next prompt begins with exactly this turn's tokens.
- All training text is written by `scripts/demo_model/`.

## Accuracy

Greedy, bfloat16, through `transformers`; an answer counts when every word is right. Half of the
short chats have a system prompt, a third of the questions come mid-chat. "Held out" was never
trained on.

| what | right | of |
|---|---:|---:|
{rows}

## Two chats

{chats}

## Making it again

```
python scripts/train_demo_model.py
```

needs `torch`, `transformers`, `tokenizers`, `safetensors` and `tqdm`, and two CPU cores. This one:
{training_tokens:,} training tokens in {steps:,} steps and {sessions} session(s),
{training_minutes} minutes in all, last seed {seed}. Sessions continue with `--resume`; the
mix of text was tuned between them. The text is seeded, the time limit is not: `--steps` fixes the
amount of text. `--evaluate-only` measures the folder as it is.

Licence: Apache-2.0, as RadixLM.
"""


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
            rows=rows, chats=chats, layers=LAYERS, hidden=HIDDEN,
            heads=HEADS, kv_heads=KV_HEADS,
            vocab=VOCAB, context=CONTEXT, **made,
        )
    )  # fmt: skip
