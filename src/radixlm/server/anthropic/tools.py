"""The tools of a request to /v1/messages, and as a chat has them.

Those that Anthropic defined come without a schema: its models were taught them, others are told.
Source: https://docs.claude.com/en/docs/agents-and-tools/tool-use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from radixlm.server.body import named
from radixlm.server.cache_fields import CacheControl
from radixlm.server.fields import NotYet
from radixlm.server.request_model import Body, ListOf, by_type

Json = dict[str, Any]
_TEXT: Json = {"type": "string"}
_LINE: Json = {"type": "integer"}
_BASH: Json = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The command to run."},
        "restart": {"type": "boolean", "description": "Restart the shell; needs no command."},
    },
}
_COMMANDS = ("view", "create", "str_replace", "insert")


class _Tool(Body):
    """input_examples: shown to the model at the description's end."""

    # How its input is streamed makes no difference: it comes as it is made. Nor does it when the
    # tool is loaded: there is no search that it could come from later, so it is there at once.
    no_ops = frozenset({"eager_input_streaming", "defer_loading"})
    not_yet: ClassVar[NotYet] = {"allowed_callers": (["direct"],)}

    input_examples: ListOf[Json] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None

    def as_function(self, name: str, description: str | None, parameters: Json) -> Json:
        """The tool of a chat."""
        examples = [
            f"Example input: {json.dumps(each, ensure_ascii=False)}"
            for each in self.input_examples or ()
        ]
        told = [*([] if description is None else [description]), *examples]
        function = {
            "name": name,
            "description": "\n".join(told) if told else None,
            "parameters": parameters,
            "strict": self.strict,
        }
        return {"type": "function", "function": named(function)}


class CustomTool(_Tool):
    """A tool that the client describes and runs."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: Json

    @property
    def in_chat(self) -> Json:
        return self.as_function(self.name, self.description, self.input_schema)


class BashTool(_Tool):
    """A shell that the client runs."""

    type: Literal["bash_20241022", "bash_20250124"]
    name: Literal["bash"]

    @property
    def in_chat(self) -> Json:
        text = "Run a command in a bash shell, which goes on from call to call."
        return self.as_function(self.name, text, _BASH)


class OldEditorTool(_Tool):
    """An editor that the client runs, and that can undo."""

    type: Literal["text_editor_20241022", "text_editor_20250124"]
    name: Literal["str_replace_editor"]

    @property
    def in_chat(self) -> Json:
        text = "View and edit text files. undo_edit takes back the last edit of the file."
        return self.as_function(self.name, text, _editor((*_COMMANDS, "undo_edit")))


class EditorTool(_Tool):
    """max_characters: of a file that is viewed, so many are shown; of the later version."""

    type: Literal["text_editor_20250429", "text_editor_20250728"]
    name: Literal["str_replace_based_edit_tool"]
    max_characters: Annotated[int, Field(ge=1)] | None = None

    @property
    def in_chat(self) -> Json:
        text = "View and edit text files."
        if self.max_characters is not None:
            text += f" A view shows at most {self.max_characters} characters."
        return self.as_function(self.name, text, _editor(_COMMANDS))


def _editor(commands: tuple[str, ...]) -> Json:
    return {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": list(commands)},
            "path": {"type": "string", "description": "The file, or a directory to view."},
            "file_text": {**_TEXT, "description": "create: what the file is to hold."},
            "old_str": {**_TEXT, "description": "str_replace: text that stands there once."},
            "new_str": {**_TEXT, "description": "str_replace, insert: the new text."},
            "insert_line": {**_LINE, "description": "insert: the line after which; 0: the top."},
            "view_range": {
                "type": "array",
                "items": _LINE,
                "description": "view: first and last line, from 1; -1: the end.",
            },
        },
        "required": ["command", "path"],
    }


_TAGS: Mapping[str | None, str] = {
    None: "CustomTool",
    "custom": "CustomTool",
    "bash_20241022": "BashTool",
    "bash_20250124": "BashTool",
    "text_editor_20241022": "OldEditorTool",
    "text_editor_20250124": "OldEditorTool",
    "text_editor_20250429": "EditorTool",
    "text_editor_20250728": "EditorTool",
}

ClientTool = Annotated[
    Annotated[CustomTool, Tag("CustomTool")]
    | Annotated[BashTool, Tag("BashTool")]
    | Annotated[OldEditorTool, Tag("OldEditorTool")]
    | Annotated[EditorTool, Tag("EditorTool")],
    by_type(_TAGS, "Tools are supported"),
]
