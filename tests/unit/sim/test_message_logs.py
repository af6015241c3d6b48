"""Conversations of logs, as the server would render them."""

from __future__ import annotations

import shutil
from pathlib import Path

from radixlm.sim.message_logs import MessageTokenizer
from radixlm.text.model_folder import DEMO_MODEL
from radixlm.text.tokenizer import Tokenizer

# Says how calls are to be written, and leaves out those that were made.
SAYS = """{% for tool in tools or [] %}{{ tool | tojson }} Call as <TOOLCALL>[...]</TOOLCALL>.
{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks."}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


def test_calls_are_written_in_the_format_that_the_template_says(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "chat_template.jinja").write_text(SAYS)
    asks = {"role": "user", "content": "Look there."}
    [call] = MessageTokenizer(str(folder)).calls(
        [asks, {"role": "assistant", "content": None, "tool_calls": [CALL]}], [TOOL], "a line"
    )
    answer = Tokenizer.load(folder).decode(call.answer)
    assert answer == '<TOOLCALL>[{"name": "look", "arguments": {"at": 1}}]</TOOLCALL>'
