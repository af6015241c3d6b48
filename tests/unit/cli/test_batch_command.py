"""`radixlm batch` over the embedded demo model."""

from __future__ import annotations

import json

from click.testing import CliRunner

from radixlm.cli.batch_command import command


def written(path, *prompts):
    lines = [
        {"custom_id": f"r{n}", "url": "/v1/completions", "body": {"prompt": each, "max_tokens": 2}}
        for n, each in enumerate(prompts)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_lines_are_answered_and_what_is_done_is_not_asked_again(tmp_path):
    source, output = written(tmp_path / "in", "Once", "Once upon", ""), tmp_path / "out"
    run = CliRunner().invoke(command, [source, str(output), "--kv-tokens", "1000"])
    assert run.exit_code == 1  # an empty prompt
    assert "3 lines answered, 1 with an error" in run.stderr
    found = [json.loads(line) for line in output.read_text().splitlines()]
    status = {each["custom_id"]: each["response"]["status_code"] for each in found}
    assert status == {"r0": 200, "r1": 200, "r2": 400}
    before = output.read_bytes()
    again = CliRunner().invoke(command, [source, str(output), "--kv-tokens", "1000"])
    assert "3 lines answered, 1 with an error; 0.0% of 0 prompt tokens" in again.stderr
    assert output.read_bytes() == before


def test_an_output_of_another_input_is_refused_before_the_model_is_loaded(tmp_path):
    source, output = written(tmp_path / "in", "a"), tmp_path / "out"
    output.write_text("mine\n")
    run = CliRunner().invoke(command, [source, str(output), "--model", "radixlm-demo"])
    assert "something else" in str(run.exception)
    assert output.read_text() == "mine\n"
