"""Whether, and how hard, a model is to think, in the words of its chat template.

The variables that say so have many names; a template reads some of them, and knows some values of
each. Both are read off its source, and tried on it; the model's name says nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from jinja2 import nodes
from jinja2.meta import find_undeclared_variables

from radixlm.core.errors import InvalidRequestError
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.sandbox import parsed

_SWITCHES = (
    *("enable_thinking", "thinking", "enable_reasoning", "reasoning"),
    *("thinking_mode", "thinking_option"),
)
# What they are compared with, where that is text: for on, and for off.
_WORDS = (
    *(("on", "off"), ("enabled", "disabled"), ("think", "no_think")),
    *(("thinking", "chat"), ("true", "false")),
)
_EFFORT: Final = "reasoning_effort"
_BUDGET: Final = "thinking_budget"
_NONE: Final = "none"
_LADDER = ("minimal", "low", "medium", "high", "xhigh", "max")
# What models know whose template prints any word.
_PRINTED = ("low", "medium", "high")
_PROBE = [{"role": "user", "content": "Hello"}]
_STRANGE = "radixlm-effort"


class ThinkingWish(NamedTuple):
    """A request's wish for thinking; None leaves it to the model.

    on: whether it is to think. effort: `none`, or how hard, from `minimal` to `max`. budget: of
    thoughts, in tokens.
    """

    on: bool | None = None
    effort: str | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class ThinkingSwitch:
    """Variables by which a template is asked to think.

    switches: the values for off and on that it takes, by the variable. efforts: what it takes for
    each effort. budget: whether it reads one.
    """

    switches: Mapping[str, Mapping[bool, bool | str]] = field(default_factory=dict)
    efforts: Mapping[str, str] = field(default_factory=dict)
    budget: bool = False

    @classmethod
    def of(cls, template: ChatTemplate | None) -> ThinkingSwitch:
        """Find the switch of a template. Renders it some ten times."""
        if template is None:
            return cls()
        trees = [parsed(source) for source in {template.source, template.tool_source}]
        names = {name for tree in trees for name in find_undeclared_variables(tree)}
        switches = {
            name: {
                on: value
                for on, value in _values(trees, name).items()
                if _prompt(template, {name: value}) is not None
            }
            for name in _SWITCHES
            if name in names
        }
        efforts = _efforts(template, trees, switches) if _EFFORT in names else {}
        budget = _BUDGET in names
        can_stop = budget or any(False in values for values in switches.values())
        if _NONE not in efforts and efforts and not can_stop:
            efforts[_NONE] = efforts[_LADDER[0]]
        return cls(switches, efforts, budget)

    def variables(self, wish: ThinkingWish, given: Mapping[str, Any]) -> dict[str, Any]:
        """The variables that the template is given.

        given: those that are to be as they are; where one of them switches thinking, its other
        names get the same.
        """
        on = thinks(wish, given)
        made: dict[str, Any] = {}
        if on is not None:
            made = {name: values[on] for name, values in self.switches.items() if on in values}
        effort = _NONE if on is False else wish.effort
        if effort is not None and effort in self.efforts:
            made[_EFFORT] = self.efforts[effort]
        if self.budget and (on is False or wish.budget is not None):
            made[_BUDGET] = 0 if on is False else wish.budget
        return {**made, **given}


def thinks(wish: ThinkingWish, given: Mapping[str, Any]) -> bool | None:
    """Whether a model is to think; None leaves it to the model. given: as to `variables`."""
    for name in _SWITCHES:
        if (on := _meant(given.get(name))) is not None:
            return on
    if wish.on is not None:
        return wish.on
    effort, budget = given.get(_EFFORT, wish.effort), given.get(_BUDGET, wish.budget)
    if effort is not None:
        return bool(effort != _NONE)
    return None if budget is None else budget != 0


def _meant(value: object) -> bool | None:
    """The meaning of a switch's value."""
    if isinstance(value, bool):
        return value
    return next((value == on for on, off in _WORDS if value in (on, off)), None)


def _values(trees: Sequence[nodes.Template], name: str) -> dict[bool, bool | str]:
    """The values of a switch, off and on: words where it is compared with one of them."""
    compared = {
        constant
        for tree in trees
        for comparison in tree.find_all(nodes.Compare)
        if any(each.name == name for each in comparison.find_all(nodes.Name))
        for constant in _texts(comparison)
    }
    for on, off in _WORDS:
        if compared & {on, off}:
            return {False: off, True: on}
    return {False: False, True: True}


def _texts(tree: nodes.Node) -> set[str]:
    """All literal texts; those of a literal list are one constant."""
    values = [constant.value for constant in tree.find_all(nodes.Const)]
    each = [
        part for value in values for part in (value if isinstance(value, tuple | list) else [value])
    ]
    return {value for value in each if isinstance(value, str)}


def _efforts(
    template: ChatTemplate,
    trees: Sequence[nodes.Template],
    switches: Mapping[str, Mapping[bool, bool | str]],
) -> dict[str, str]:
    """The word for each effort that a template knows: the nearest of those that it knows."""
    thinks = {name: values[True] for name, values in switches.items() if True in values}
    prompts = {
        word: _prompt(template, {**thinks, _EFFORT: word}) for word in (*_LADDER, _NONE, _STRANGE)
    }
    texts = {text for tree in trees for text in _texts(tree)}
    if _STRANGE in (prompts[_STRANGE] or ""):
        known = list(_PRINTED)
    else:
        known = [word for word in _LADDER if word in texts and prompts[word] is not None]
    found = {_NONE: _NONE} if _NONE in texts and prompts[_NONE] is not None else {}
    if known:
        other = {prompts[word] for word in known} | {None}
        for word in _LADDER:
            # Less than the least that it has a word for may be what it says without any.
            least = _LADDER.index(word) < _LADDER.index(known[0]) and prompts[word] not in other
            found[word] = word if least and known != [*_PRINTED] else _nearest(word, known)
    return found


def _nearest(word: str, known: Sequence[str]) -> str:
    """The nearest word of the ladder, of two the higher one."""
    at = _LADDER.index(word)
    return min(known, key=lambda each: (abs(_LADDER.index(each) - at), -_LADDER.index(each)))


def _prompt(template: ChatTemplate, variables: Mapping[str, Any]) -> str | None:
    """A short prompt with these variables; None where the template refuses them."""
    try:
        return template.render(_PROBE, **variables)
    except InvalidRequestError:
        return None
