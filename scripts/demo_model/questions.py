"""Single questions with their one right answer: facts, sums, lists, small talk, refusals."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from . import facts, phrases
from .phrases import Wordings

Rng = random.Random


@dataclass(frozen=True)
class Turn:
    user: str
    answer: str


def kept_out(key: str, parts: int) -> bool:
    """One in `parts` keys is never trained on; a stable hash decides, so runs agree."""
    return zlib.crc32(key.encode()) % parts == 0


def pseudo_word(rng: Rng, syllables: int) -> str:
    """Made-up words make the model copy from its context instead of from memory."""
    parts = []
    for _ in range(syllables):
        parts.append(rng.choice("b c d f g h j k l m n p r s t v w z br st tr kl sh th".split()))
        parts.append(rng.choice("a e i o u a e i o ai oo".split()))
    return "".join(parts) + rng.choice(["", "", "n", "r", "s", "l", "k", "m"])


def sum_kept_out(a: int, b: int) -> bool:
    """Both orders go together, or b + a would give a + b away."""
    return kept_out(f"{min(a, b)}+{max(a, b)}", 10)


def _ask(rng: Rng, wordings: Wordings, split: str, **slots: object) -> str:
    return rng.choice(wordings.of(split)).format(**slots)


def _with_a(thing: str) -> str:
    return ("an " if thing[0] in "aeiou" else "a ") + thing


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def capital(rng: Rng, split: str) -> Turn:
    if split == "train" and rng.random() < 0.06:
        country = pseudo_word(rng, rng.randint(2, 3)).capitalize()
        return Turn(
            _ask(rng, phrases.CAPITAL, split, x=country),
            f"I do not know the capital of {country}.",
        )
    country = rng.choice(list(facts.CAPITALS))
    asked = country.removeprefix("the ") if rng.random() < 0.3 else country
    question = sentence(_ask(rng, phrases.CAPITAL, split, x=asked))
    answer = f"The capital of {country} is {facts.CAPITALS[country]}."
    return Turn(question, answer.replace("..", "."))


def capital_of(rng: Rng, split: str) -> Turn:
    country = rng.choice([c for c in facts.CAPITALS if c != "England"])
    city = facts.CAPITALS[country]
    return Turn(
        _ask(rng, phrases.CAPITAL_OF, split, x=city), f"{city} is the capital of {country}."
    )


def continent(rng: Rng, split: str) -> Turn:
    country = rng.choice(list(facts.CONTINENTS))
    question = sentence(_ask(rng, phrases.CONTINENT, split, x=country))
    return Turn(question, sentence(f"{country} is in {facts.CONTINENTS[country]}."))


def opposite(rng: Rng, split: str) -> Turn:
    word = rng.choice(list(facts.OPPOSITES))
    answer = f"The opposite of {word} is {facts.OPPOSITES[word]}."
    return Turn(_ask(rng, phrases.OPPOSITE, split, x=word), answer)


def animal_fact(rng: Rng, split: str) -> Turn:
    table, wordings, form = rng.choice(
        [
            (facts.SOUNDS, phrases.SOUND, "{A} says {y}."),
            (facts.LEGS, phrases.LEGS, "{A} has {y} legs."),
            (facts.YOUNG, phrases.YOUNG, "A baby {x} is called a {y}."),
        ]
    )
    animal = rng.choice(list(table))
    question = _ask(rng, wordings, split, x=animal)
    for article in ("a ", "A "):  # "a owl" -> "an owl"
        if animal[0] in "aeiou":
            question = question.replace(f"{article}{animal}", f"{article.strip()}n {animal}")
    return Turn(question, form.format(A=sentence(_with_a(animal)), x=animal, y=table[animal]))


def colour_of(rng: Rng, split: str) -> Turn:
    thing = rng.choice(list(facts.COLOURS_OF))
    question = sentence(_ask(rng, phrases.COLOUR, split, x=thing))
    return Turn(question, sentence(f"{thing} is {facts.COLOURS_OF[thing]}."))


def what_follows(rng: Rng, split: str) -> Turn:
    row = rng.choice([facts.DAYS, facts.MONTHS, facts.LETTERS])
    i = rng.randrange(len(row) - 1)
    return Turn(_ask(rng, phrases.AFTER, split, x=row[i]), f"After {row[i]} comes {row[i + 1]}.")


def single_fact(rng: Rng, split: str) -> Turn:
    wordings, answer = rng.choice(facts.SINGLE_FACTS)
    question = wordings[-1] if split == "held_out" else rng.choice(wordings[:-1])
    return Turn(question, answer)


def addends(rng: Rng, held_out: bool) -> tuple[int, int]:
    """Training sees small sums more often than chance: people try those first."""
    while True:
        top = 99 if held_out or rng.random() < 0.8 else 20
        a, b = rng.randint(0, top), rng.randint(0, top)
        if sum_kept_out(a, b) == held_out:
            return a, b


def addition(rng: Rng, split: str) -> Turn:
    if split == "train" and rng.random() < 0.02:
        a, b = rng.randint(100, 9999), rng.randint(0, 999)
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        return Turn(_ask(rng, phrases.SUM, split, a=a, b=b), phrases.TOO_BIG)
    a, b = addends(rng, split == "held_out")
    return Turn(_ask(rng, phrases.SUM, split, a=a, b=b), f"{a} + {b} = {a + b}.")


def small_sum(rng: Rng, split: str) -> Turn:
    if rng.random() < 0.5:
        a = rng.randint(0, 20)
        b = rng.randint(0, a)
        return Turn(_ask(rng, phrases.MINUS, split, a=a, b=b), f"{a} - {b} = {a - b}.")
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return Turn(_ask(rng, phrases.TIMES, split, a=a, b=b), f"{a} * {b} = {a * b}.")


def count(rng: Rng, split: str) -> Turn:
    """The answer first says the bounds again: a small model then knows where to stop."""
    spans = [rng.randint(1, 6), rng.randint(7, 14), rng.randint(15, 30), rng.randint(31, 99)]
    span = rng.choices(spans, [60, 33, 5, 2] if split == "train" else [40, 45, 15, 0])[0]
    a = rng.randint(0, 40) if span < 31 else rng.randint(0, 3)
    low, high = a, a + span
    kind = rng.random()
    if kind < 0.65:
        question, row = _ask(rng, phrases.COUNT, split, a=low, b=high), range(low, high + 1)
        said = f"From {low} to {high}"
    elif kind < 0.8:
        high = min(100, span + 1)
        question, row = _ask(rng, phrases.COUNT_UP_TO, split, b=high), range(1, high + 1)
        said = f"From 1 to {high}"
    else:
        question = _ask(rng, phrases.COUNT_DOWN, split, a=high, b=low)
        row = range(high, low - 1, -1)
        said = f"Down from {high} to {low}"
    return Turn(question, f"{said}: {', '.join(map(str, row))}.")


def make_list(rng: Rng, split: str) -> Turn:
    if rng.random() < 0.35:
        what = rng.choice(list(facts.WHOLE_LISTS))
        answer = f"{sentence(what)}: {', '.join(facts.WHOLE_LISTS[what])}."
        return Turn(_ask(rng, phrases.WHOLE_LIST, split, x=what), answer)
    what = rng.choice(list(facts.LISTS))
    n = rng.randint(2, 8) if rng.random() < 0.6 else rng.randint(3, 5)
    asked = facts.NUMBER_WORDS[n] if rng.random() < 0.6 else str(n)
    word = what.replace("colour", "color") if rng.random() < 0.3 else what
    said = sentence(f"{facts.NUMBER_WORDS[n]} {what}")
    answer = f"{said}: {', '.join(facts.LISTS[what][:n])}."
    return Turn(_ask(rng, phrases.LIST, split, n=asked, x=word), answer)


def repeat(rng: Rng, split: str) -> Turn:
    pool = facts.ANIMALS + facts.COLOURS + facts.FOODS + facts.REAL_NAMES
    words = [
        pseudo_word(rng, rng.randint(1, 3)) if rng.random() < 0.5 else rng.choice(pool)
        for _ in range(rng.randint(1, 7))
    ]
    if rng.random() < 0.3:
        words.insert(0, str(rng.randint(0, 9999)))
    text = " ".join(words)
    return Turn(_ask(rng, phrases.REPEAT, split, x=text), text)


def small_talk(rng: Rng, split: str) -> Turn:
    wordings, answer = rng.choice(phrases.SMALL_TALK)
    return Turn(rng.choice(wordings.of(split)), answer)


def unknown(rng: Rng, split: str) -> Turn:
    def topic() -> str:
        words = [
            rng.choice(facts.TOPICS) if rng.random() < 0.55 else pseudo_word(rng, rng.randint(1, 3))
            for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 6]))
        ]
        return " ".join(words)

    if split == "train" and rng.random() < 0.3:
        words = rng.choices(facts.COMMON_WORDS + facts.TOPICS, k=rng.randint(3, 12))
        return Turn(sentence(" ".join(words)) + rng.choice("?.?"), phrases.REFUSAL)
    question = _ask(rng, phrases.UNKNOWN, split, x=topic(), y=topic())
    return Turn(question, phrases.REFUSAL)


def casual(rng: Rng, text: str) -> str:
    """People drop capitals and full stops, and say please; answers stay the same."""
    if rng.random() < 0.07:
        opener = rng.choice(["Hello! ", "Hi! ", "Hi, ", "Please ", "Hey, ", "Okay, ", "Thanks. "])
        text = opener + (text if opener[-2] in "!." else text[0].lower() + text[1:])
    if text[-1] in ".?!" and rng.random() < 0.2:
        text = text[:-1]
    if rng.random() < 0.12:
        text = text[0].lower() + text[1:]
    return text


def lower_case(rng: Rng, turn: Turn) -> Turn:
    """Some never use capitals; only safe where the answer copies no word of the question."""
    if rng.random() < 0.2 and "do not know the" not in turn.answer:
        return Turn(turn.user.lower(), turn.answer)
    return turn


FACTS: dict[Callable[[Rng, str], Turn], float] = {
    capital: 10,
    capital_of: 4,
    continent: 4,
    opposite: 3,
    animal_fact: 3,
    colour_of: 2,
    what_follows: 4,
    single_fact: 2,
}


def fact(rng: Rng, split: str) -> Turn:
    return rng.choices(list(FACTS), list(FACTS.values()))[0](rng, split)
