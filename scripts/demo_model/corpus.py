"""Puts questions together: chats with memory, drills, and plain text for completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import facts, phrases, questions, recall, stories
from .questions import Rng, Turn
from .systems import system_prompt

Messages = list[tuple[str, str]]

# What a turn is about, by weight. Sums and recall are the hard parts, so they come most often.
KINDS: dict[Callable[[Rng, str], Turn], float] = {
    questions.addition: 24,
    questions.small_sum: 10,
    questions.fact: 25,
    questions.count: 18,
    questions.make_list: 8,
    questions.repeat: 4,
    questions.small_talk: 8,
    questions.unknown: 7,
    stories.story: 2.2,
    stories.poem: 0.6,
}
TELL_WEIGHT = 18.0


class Chat:
    """Writes one conversation turn by turn and remembers what the user has told."""

    def __init__(self, rng: Rng, system: str | None) -> None:
        self.rng = rng
        self.messages: Messages = [("system", system)] if system else []
        self._chunks: dict[str, recall.Memo] = {}
        self._due: list[tuple[int, str]] = []
        self.turns = 0

    def add(self, turn: Turn) -> None:
        self.messages += [("user", turn.user), ("assistant", turn.answer)]
        self.turns += 1

    def tell(self, memo: recall.Memo) -> None:
        """Most things are asked for again one to four turns later, a few much later."""
        self._chunks[memo.key] = memo
        self.add(memo.tell)
        for chance, gaps in ((0.85, (0, 1, 1, 2, 2, 3, 4)), (0.3, (3, 6, 10, 20))):
            if self.rng.random() < chance:
                self._due.append((self.turns + self.rng.choice(gaps), memo.key))

    def step(self) -> None:
        rng = self.rng
        self._due.sort()
        if self._due and self._due[0][0] <= self.turns:
            self.add(self._chunks[self._due.pop(0)[1]].ask(rng, "train"))
            return
        pick = rng.choices(range(2), [TELL_WEIGHT, sum(KINDS.values())])[0]
        if pick == 0:
            if rng.random() < 0.05:
                key = rng.choice(["name", *recall.THINGS])
                if key not in self._chunks:
                    self.add(recall.never_told(rng, key))
                    return
            self.tell(recall.memo(rng, "train"))
            return
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        turn = kind(rng, "train")
        if kind not in (questions.repeat, stories.story, stories.poem):
            turn = questions.lower_case(rng, turn)
        self.add(Turn(questions.casual(rng, turn.user), turn.answer))


def chat(rng: Rng, turns: int, longest_system: int = 24) -> Messages:
    writer = Chat(rng, system_prompt(rng, longest_system))
    if rng.random() < 0.08:  # one chat in twelve keeps to one subject, as people do
        kind = rng.choice([questions.addition, questions.capital, questions.count])
        for _ in range(turns):
            writer.add(kind(rng, "train"))
    while writer.turns < turns:
        writer.step()
    return writer.messages


def _fact_text(rng: Rng) -> str:
    kind = rng.choice([questions.capital, questions.fact, questions.fact])
    lines = [kind(rng, "train").answer for _ in range(rng.randint(1, 7))]
    return rng.choice([" ", " ", "\n"]).join(line for line in lines if "not know" not in line)


def _sum_text(rng: Rng) -> str:
    lines = []
    for _ in range(rng.randint(1, 24)):
        kind = questions.small_sum if rng.random() < 0.4 else questions.addition
        lines.append(kind(rng, "train").answer)
    return rng.choice([" ", "\n"]).join(lines)


def _question_text(rng: Rng) -> str:
    q, a = rng.choice([("Q: ", "A: "), ("Question: ", "Answer: "), ("", ""), ("User: ", "Bot: ")])
    kinds = [questions.addition, questions.fact, questions.fact, questions.make_list]
    turns = [rng.choice(kinds)(rng, "train") for _ in range(rng.randint(1, 6))]
    return "\n".join(f"{q}{t.user}\n{a}{t.answer}" for t in turns) + "\n"


def _list_text(rng: Rng) -> str:
    kind = rng.random()
    if kind < 0.6:
        lines = [questions.count(rng, "train").answer for _ in range(rng.randint(1, 5))]
        return rng.choice([" ", "\n"]).join(lines)
    if kind < 0.75:
        a = rng.choice([0, 1, 1, 1, rng.randint(2, 60)])
        return ", ".join(map(str, range(a, a + rng.randint(5, 25)))) + "."
    what = rng.choice(list(facts.WHOLE_LISTS))
    verb = rng.choice(["are", "are:"])
    return questions.sentence(f"{what} {verb} {', '.join(facts.WHOLE_LISTS[what])}.")


def _story_text(rng: Rng) -> str:
    return stories.story_about(rng, stories.subject(rng))


def plain_text(rng: Rng) -> str:
    """Text without the chat template; no bos, because completion prompts have none."""
    kinds = [_fact_text, _sum_text, _question_text, _list_text, _story_text]
    return rng.choices(kinds, [4, 4, 2, 3, 1.5])[0](rng) or phrases.REFUSAL


def short_documents(rng: Rng, longest_system: int) -> Iterator[Messages | str]:
    """Endless: mostly chats of a few turns, one document in six plain text."""
    while True:
        if rng.random() < 0.17:
            yield plain_text(rng)
        else:
            yield chat(rng, rng.choice([1, 2, 3, 4, 5, 6, 8, 12]), longest_system)


def long_documents(rng: Rng) -> Iterator[Messages | str]:
    """Endless: chats that fill a long context on their own, between short ones."""
    while True:
        if rng.random() < 0.25:
            yield chat(rng, rng.choice([60, 120, 160]), longest_system=60)
        elif rng.random() < 0.17:
            yield plain_text(rng)
        else:
            yield chat(rng, rng.choice([2, 4, 8, 16, 30]), longest_system=40)
