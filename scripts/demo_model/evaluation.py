"""Measures the saved folder as users get it: bfloat16, through transformers, greedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from . import facts, phrases, questions, recall, stories
from .corpus import Messages, chat, plain_text
from .questions import Rng, Turn, casual
from .systems import system_prompt

LONG = 3500  # tokens of history before the question in the long-context rows


@dataclass(frozen=True)
class Case:
    """`expected` must be the whole answer; for completions, its beginning."""

    prompt: Messages | str
    expected: str


class Answerer(Protocol):
    """A model that is asked, with its tokenizer as transformers has it."""

    tokenizer: Any

    def render(self, prompt: Messages | str) -> str: ...

    def answers(self, prompts: list[Messages | str], most: int = 160) -> list[str]:
        """Greedy; one that does not end within `most` tokens ends in <|cut|>."""
        ...


def render(tokenizer: Any, prompt: Messages | str) -> str:
    if isinstance(prompt, str):
        return prompt
    messages = [{"role": role, "content": text} for role, text in prompt]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


class Greedy:
    """Batched greedy decoding; answers are cut at eos."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.model.eval()
        self.tokenizer.padding_side = "left"

    def render(self, prompt: Messages | str) -> str:
        return render(self.tokenizer, prompt)

    @torch.inference_mode()
    def answers(self, prompts: list[Messages | str], most: int = 160) -> list[str]:
        texts = [self.render(p) for p in prompts]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        out = [""] * len(texts)
        while order:
            size = 1 if len(texts[order[-1]]) > 4000 else 32
            batch, order = order[-size:], order[:-size]
            encoded = self.tokenizer([texts[i] for i in batch], return_tensors="pt", padding=True)
            ids = self.model.generate(
                **{k: encoded[k] for k in ("input_ids", "attention_mask")},
                max_new_tokens=most, do_sample=False,
            )  # fmt: skip
            for i, row in zip(batch, ids[:, encoded["input_ids"].shape[1] :], strict=True):
                text = self.tokenizer.decode(row).removesuffix("<|pad|>")
                out[i] = text.split("<|eos|>")[0] if "<|eos|>" in text else text + "<|cut|>"
        return out


def _single(make: Callable[[Rng, str], Turn], split: str = "held_out") -> Callable[[Rng], Case]:
    """One question, half of the time below a system prompt, a third of the time mid-chat."""

    def case(rng: Rng) -> Case:
        turn = make(rng, split)
        if rng.random() < 0.33:
            before = chat(rng, rng.randint(1, 3))
        else:
            system = system_prompt(rng)
            before = [("system", system)] if system else []
        return Case([*before, ("user", turn.user)], turn.answer)

    return case


def _sum(rng: Rng) -> Case:
    a, b = questions.addends(rng, True)
    wording = rng.choice(phrases.SUM.train + phrases.SUM.held_out)
    turn = Turn(wording.format(a=a, b=b), f"{a} + {b} = {a + b}.")
    return _single(lambda _rng, _split: turn)(rng)


def _recall(kind: str) -> Callable[[Rng], Case]:
    """Held-out value, told and asked in held-out words, two other turns in between."""

    def case(rng: Rng) -> Case:
        memo = recall.memo(rng, "held_out", kind)
        system = system_prompt(rng)
        messages: Messages = [("system", system)] if system else []
        turns = [memo.tell]
        for make in rng.choices([questions.fact, questions.addition, questions.make_list], k=2):
            turn = make(rng, "train")
            turns.append(Turn(casual(rng, turn.user), turn.answer))
        for turn in turns:
            messages += [("user", turn.user), ("assistant", turn.answer)]
        return Case([*messages, ("user", memo.ask(rng, "held_out").user)], memo.answer)

    return case


def _completion(rng: Rng) -> Case:
    if rng.random() < 0.5:
        country = rng.choice(list(facts.CAPITALS))
        return Case(f"The capital of {country} is", f" {facts.CAPITALS[country]}")
    a, b = questions.addends(rng, True)
    return Case(f"{a} + {b} =", f" {a + b}.")


CATEGORIES: dict[str, tuple[Callable[[Rng], Case], int]] = {
    "capitals, held-out wording": (_single(questions.capital), 160),
    "other facts, held-out wording": (_single(questions.fact), 200),
    "sums of held-out pairs": (_sum, 300),
    "small differences and products, held-out wording": (_single(questions.small_sum), 100),
    "counting, held-out wording": (_single(questions.count), 100),
    "lists, held-out wording": (_single(questions.make_list), 120),
    "name told two turns ago, held-out names and wording": (_recall("name"), 160),
    "number told two turns ago, held-out numbers and wording": (_recall("number"), 160),
    "greetings and who are you, held-out wording": (_single(questions.small_talk), 100),
    "says that it does not know, held-out wording": (_single(questions.unknown), 100),
    "plain completions (capitals, held-out sums)": (_completion, 100),
}


def _history(rng: Rng, tokenizer: Any, tokens: int) -> Messages:
    """A genuine chat, cut after the answer that brings it past `tokens`."""
    messages = chat(rng, 220)
    for end in range(60, len(messages) + 1):
        if messages[end - 1][0] != "assistant":
            continue
        text = "".join(t for _, t in messages[:end])
        if len(tokenizer(text)["input_ids"]) + 2 * end > tokens:
            return messages[:end]
    return messages


def _long_cases(rng: Rng, tokenizer: Any) -> dict[str, list[Case]]:
    """The same questions, asked after 3,500 tokens of conversation."""
    plain = ["capitals, held-out wording", "sums of held-out pairs", "lists, held-out wording"]
    told = [name for name in CATEGORIES if "told two turns ago" in name]
    out: dict[str, list[Case]] = {}
    for title, names, count in (("facts, sums, lists", plain, 60), ("name and number", told, 40)):
        cases = []
        for i in range(count):
            case = CATEGORIES[names[i % len(names)]][0](rng)
            asked = [m for m in case.prompt if not isinstance(m, str) and m[0] != "system"]
            cases.append(Case([*_history(rng, tokenizer, LONG), *asked], case.expected))
        out[f"after {LONG:,} tokens: {title}"] = cases
    return out


_WORD = re.compile(r"[A-Za-z'-]+")


def _lexicon(rng: Rng) -> set[str]:
    words: set[str] = set()
    for _ in range(4000):
        words.update(_WORD.findall(plain_text(rng)))
        for _, text in chat(rng, 3)[-2:]:
            words.update(_WORD.findall(text))
    return words


def readable(answer: str, prompt: str, lexicon: set[str]) -> bool:
    """It ends, and every word is one the text knows or the prompt used."""
    said = set(_WORD.findall(answer))
    return "<|cut|>" not in answer and said <= lexicon | set(_WORD.findall(prompt))


@dataclass(frozen=True)
class Report:
    accuracy: dict[str, float]
    counts: dict[str, int]
    wrong: list[tuple[str, str, str]]
    samples: list[Messages]


def _samples(greedy: Answerer) -> list[Messages]:
    """Two short chats, answered turn by turn."""
    scripts = [
        ["Hello!", "Who are you?", "What is the capital of France?", "What's 12 + 7?"],
        ["My name is Anna.", "Count from 3 to 9", "Name three fruits.", "What is my name?"],
    ]
    out = []
    for script in scripts:
        messages: Messages = []
        for question in script:
            messages.append(("user", question))
            messages.append(("assistant", greedy.answers([list(messages)])[0]))
        out.append(messages)
    return out


def evaluate(greedy: Answerer, seed: int, long: bool = True) -> Report:
    rng = Rng(seed + 100)
    groups = {name: [make(rng) for _ in range(n)] for name, (make, n) in CATEGORIES.items()}
    if long:
        groups.update(_long_cases(rng, greedy.tokenizer))
    lexicon = _lexicon(Rng(seed + 200))
    accuracy: dict[str, float] = {}
    wrong, clear, total = [], 0, 0
    for name, cases in groups.items():
        completion = isinstance(cases[0].prompt, str)
        said = greedy.answers([c.prompt for c in cases], 16 if completion else 400)
        right = 0
        for case, answer in zip(cases, said, strict=True):
            good = answer.startswith(case.expected) if completion else answer == case.expected
            right += good
            if not good:
                wrong.append((name, case.expected, answer))
            if not completion:
                clear += readable(answer, greedy.render(case.prompt), lexicon)
                total += 1
        accuracy[name] = right / len(cases)
    told = [stories.story(rng, "held_out") for _ in range(40)]
    said = greedy.answers([[("user", t.user)] for t in told], 300)
    accuracy["stories about what was asked, held-out wording"] = sum(
        t.user.rstrip(".?").split()[-1] in a and readable(a, t.user, lexicon)
        for t, a in zip(told, said, strict=True)
    ) / len(told)
    accuracy["readable answers, of all above"] = clear / total
    counts = {name: len(cases) for name, cases in groups.items()}
    return Report(accuracy, {**counts, list(accuracy)[-2]: len(told), list(accuracy)[-1]: total},
                  wrong, _samples(greedy))  # fmt: skip
