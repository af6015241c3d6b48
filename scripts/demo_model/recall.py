"""Things a user tells and asks back turns later: the model has to read its own context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import facts, phrases
from .phrases import Wordings
from .questions import Rng, Turn, kept_out, pseudo_word


@dataclass(frozen=True)
class Memo:
    """One remembered thing: how it was told, how to ask for it, the right answer."""

    key: str
    tell: Turn
    asks: Wordings
    answer: str
    slots: dict[str, str]

    def ask(self, rng: Rng, split: str) -> Turn:
        return Turn(rng.choice(self.asks.of(split)).format(**self.slots), self.answer)


def name_value(rng: Rng, held_out: bool) -> str:
    """Held-out names never occur in training, neither told nor in stories about that person."""
    while True:
        if rng.random() < 0.35 and not held_out:
            name = rng.choice(facts.REAL_NAMES)
        else:
            name = pseudo_word(rng, rng.choice([1, 2, 2, 2, 3])).capitalize()
        if kept_out(name, 5) == held_out or name in facts.REAL_NAMES:
            break
    if rng.random() < 0.1:
        name += " " + pseudo_word(rng, 2).capitalize()
    return name.lower() if rng.random() < 0.04 and not held_out else name


def number_value(rng: Rng, held_out: bool) -> str:
    while True:
        top = rng.choice([99, 999, 999, 9999, 999999])
        number = str(rng.randint(0 if top < 100 else top // 10, top))
        if kept_out("n" + number, 5) == held_out:
            return number


def _from(values: list[str]) -> Callable[[Rng, bool], str]:
    return lambda rng, _held_out: rng.choice(values)


THINGS: dict[str, Callable[[Rng, bool], str]] = {
    "lucky number": number_value,
    "favourite number": number_value,
    "favorite number": number_value,
    "secret code": number_value,
    "room number": number_value,
    "phone number": number_value,
    "password": lambda rng, _held_out: pseudo_word(rng, rng.randint(1, 3)),
    "favourite colour": _from(facts.COLOURS),
    "favorite color": _from(facts.COLOURS),
    "favourite food": _from(facts.FOODS),
    "favorite food": _from(facts.FOODS),
    "home town": _from(facts.CITIES),
    "city": _from(facts.CITIES),
    "job": _from(facts.JOBS),
    "favourite animal": _from(facts.ANIMALS),
    "dog's name": name_value,
    "cat's name": name_value,
    "best friend": name_value,
    "sister's name": name_value,
    "age": lambda rng, _held_out: str(rng.randint(5, 99)),
}

# key: (value, ways to tell, ways to ask, acknowledgement, answer)
_Sentence = tuple[Callable[[Rng, bool], str], str, str, str, str]
SENTENCES: dict[str, _Sentence] = {
    "live": (
        _from(facts.CITIES), "I live in {v}.|My home is in {v}.|I come from {v}.|i live in {v}",
        "Where do I live?|Which city do I live in?|Do you know where I live?|Where is my home?",
        "{v} is a nice place.", "You live in {v}.",
    ),
    "old": (
        lambda rng, _held_out: str(rng.randint(5, 99)), "I am {v} years old.|I'm {v} years old.",
        "How old am I?|What is my age?|Do you know how old I am?|how old am i",
        "Okay, you are {v} years old.", "You are {v} years old.",
    ),
    "like": (
        _from(facts.FOODS), "I like {v}.|I love {v}.|I like to eat {v}.|I really like {v}.",
        "What do I like?|What do I like to eat?|Do you know what I like?|Which food do I like?",
        "Okay, you like {v}.", "You like {v}.",
    ),
    "pet": (
        name_value, "I have a dog called {v}.|My dog is called {v}.|I have a dog named {v}.",
        "What is my dog called?|How is my dog called?|What's the name of my dog?",
        "{v} is a nice name for a dog.", "Your dog is called {v}.",
    ),
    "number": (
        number_value,
        ("Remember the number {v}.|Please remember {v}.|The number is {v}.|"
        "Remember this number: {v}|Keep the number {v} in mind."),
        ("Which number did I tell you?|What was the number?|What number should you remember?|"
        "What is the number?|Tell me the number.|Do you remember the number?"),
        "Okay, the number is {v}.", "The number is {v}.",
    ),
    "word": (
        lambda rng, _held_out: pseudo_word(rng, rng.randint(1, 3)),
        "Remember the word {v}.|The word is {v}.|Keep the word {v} in mind.",
        "Which word did I tell you?|What was the word?|What is the word?|Tell me the word.",
        "Okay, the word is {v}.", "The word is {v}.",
    ),
}  # fmt: skip


def _name(rng: Rng, split: str, told_by: str) -> Memo:
    value = name_value(rng, split == "held_out")
    tell = rng.choice(phrases.NAME_TELL.of(told_by)).format(v=value)
    answer = f"Your name is {value}."
    return Memo("name", Turn(tell, f"Nice to meet you, {value}!"), phrases.NAME_ASK, answer, {})


def memo(rng: Rng, split: str, kind: str = "") -> Memo:
    """`kind`: "name", "number", or "" for anything."""
    held_out = split == "held_out"
    pick = rng.random()
    if kind == "name" or (not kind and pick < 0.4):
        return _name(rng, split, split)
    if not kind and pick < 0.6:
        key = rng.choice(list(SENTENCES))
        make, tells, asks, ack, answer = SENTENCES[key]
        value = make(rng, held_out)
        turn = Turn(rng.choice(tells.split("|")).format(v=value), ack.format(v=value))
        wordings = Wordings(tuple(asks.split("|")), tuple(asks.split("|")))
        return Memo(key, turn, wordings, answer.format(v=value), {})
    numbers = [k for k, make in THINGS.items() if make is number_value]
    key = rng.choice(numbers if kind == "number" else list(THINGS))
    value = THINGS[key](rng, held_out)
    tell = rng.choice(phrases.THING_TELL.of(split)).format(k=key, v=value)
    turn = Turn(tell, f"Okay, your {key} is {value}.")
    return Memo(key, turn, phrases.THING_ASK, f"Your {key} is {value}.", {"k": key})


def never_told(rng: Rng, key: str) -> Turn:
    if key == "name":
        return Turn(rng.choice(phrases.NAME_ASK.train), phrases.NEVER_TOLD)
    return Turn(rng.choice(phrases.THING_ASK.train).format(k=key), phrases.NEVER_TOLD)
