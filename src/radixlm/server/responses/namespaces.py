"""Tools in namespaces: to the model each is one function, to the client a name in its namespace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from radixlm.server.responses.body import AnyTool, FunctionTool, NamespaceTool


class Member(NamedTuple):
    """A tool, and where it stands in the request. description: with its namespace's, told once."""

    tool: FunctionTool
    path: str
    description: str | None
    namespace: str | None = None

    @property
    def name(self) -> str:
        """As the model knows it."""
        return flat_name(self.namespace, self.tool.name)


def flat_name(namespace: str | None, name: str) -> str:
    """What the model calls it, as vLLM has it."""
    return name if namespace is None else f"{namespace}__{name}"


def members_of(tools: Sequence[AnyTool] | None) -> list[Member]:
    """All tools that can be called, in their order."""
    return list(_members(tools or ()))


def callers_names(tools: Sequence[AnyTool] | None) -> Mapping[str, Member]:
    """Those in namespaces, by what the model calls them."""
    return {member.name: member for member in members_of(tools) if member.namespace is not None}


def _members(tools: Sequence[AnyTool]) -> Iterator[Member]:
    for place, tool in enumerate(tools):
        path = f"tools[{place}]"
        if not isinstance(tool, NamespaceTool):
            yield Member(tool, path, tool.description)
            continue
        told = tool.description
        for inner, function in enumerate(tool.tools):
            texts = [text for text in (told, function.description) if text]
            yield Member(function, f"{path}.tools[{inner}]", "\n\n".join(texts) or None, tool.name)
            told = None
