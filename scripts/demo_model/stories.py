"""Tiny stories and poems from a grammar, so that the same ask gives many tellings."""

from __future__ import annotations

from . import facts, phrases
from .questions import Rng, Turn, pseudo_word, sentence

_PLACES = (
    "in a small house by the sea|in a green forest|on a quiet farm|in a big city|"
    "under an old tree|near a blue lake|on a high mountain|in a little village"
).split("|")
_WISHES = (
    "find a friend|see the moon|learn to sing|find a golden key|cross the river|"
    "bake a big cake|climb the hill|read a book"
).split("|")
_HELPERS = ("an old owl|a kind bear|a small mouse|a clever fox|a friendly bee|a young deer").split(
    "|"
)
_SAYINGS = (
    "Do not be afraid. I will help you.|We can do it together.|Follow me, I know the way.|"
    "Try once more, and you will see.|Come with me.|Take my hand."
).split("|")
_TRIALS = (
    "The way was long and it began to rain.|It was dark, but the stars were bright.|"
    "The wind was cold, but they did not stop.|They walked all day and all night.|"
    "It was hard, but they did not give up."
).split("|")
_ENDINGS = (
    "In the end they were happy, and they became best friends.|"
    "At last they did it, and everyone was happy.|"
    "When the sun came up, they laughed and went home.|"
    "From that day on, they were never alone again."
).split("|")


def story_about(rng: Rng, subject: str) -> str:
    """`subject` keeps its own article: "a cat", "the moon", "Anna"."""
    who = (
        subject
        if subject[0].isupper()
        else "the "
        + subject.removeprefix("a ").removeprefix("an ").removeprefix("the ").removeprefix("my ")
    )
    begin = rng.choice(["Once upon a time there was {s}.", "Long ago there lived {s}."])
    lines = [
        begin.format(s=subject),
        sentence(f"{who} lived {rng.choice(_PLACES)}."),
        f"Every day {who} wanted to {rng.choice(_WISHES)}.",
        f'One morning {rng.choice(_HELPERS)} came by and said: "{rng.choice(_SAYINGS)}"',
        sentence(f"{who} smiled, and they went on their way."),
        rng.choice(_TRIALS),
        rng.choice(_ENDINGS),
    ]
    return " ".join(lines)


def subject(rng: Rng) -> str:
    kind = rng.random()
    if kind < 0.12:
        return rng.choice(facts.REAL_NAMES)
    if kind < 0.24:
        return pseudo_word(rng, 2).capitalize()
    noun = pseudo_word(rng, rng.randint(1, 3)) if kind < 0.4 else rng.choice(facts.ANIMALS)
    if kind < 0.7 and rng.random() < 0.4:
        noun = rng.choice("little brave old happy lazy red blue small big shy".split()) + " " + noun
    if rng.random() < 0.1:
        return "the " + noun
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def story(rng: Rng, split: str) -> Turn:
    if split == "train" and rng.random() < 0.15:
        ask = "Tell me a story.|Tell a story|A story, please.|Write a story.|Tell me a short story."
        return Turn(rng.choice(ask.split("|")), story_about(rng, "a " + rng.choice(["cat", "dog"])))
    about = subject(rng)
    return Turn(rng.choice(phrases.STORY.of(split)).format(x=about), story_about(rng, about))


def poem(rng: Rng, split: str) -> Turn:
    about = rng.choice(
        ["the sea", "the moon", "spring", "a tree", "the rain", "love", "winter", subject(rng)]
    )
    lines = rng.choice(
        [
            (
                "I see {x} in morning light,|I dream of {x} all through the night.|"
                "The wind is soft, the sky is blue,|I sing this song of {x} for you."
            ),
            (
                "Here is {x}, so calm and bright,|beneath the stars, beneath the light.|"
                "And when the day is almost done,|{x} is resting in the sun."
            ),
        ]
    )
    text = "\n".join(sentence(line.format(x=about)) for line in lines.split("|"))
    return Turn(rng.choice(phrases.POEM.of(split)).format(x=about), text)
