"""Programs that run on a server load no model's code."""

import subprocess
import sys

import pytest

PROGRAM = (
    "import sys, radixlm as rl\n"
    "rl.function, rl.gen, rl.RuntimeEndpoint, rl.OpenAI, rl.set_default_backend\n"
    "print([name for name in ('torch', 'transformers', 'openai') if name in sys.modules])"
)


@pytest.mark.slow
def test_no_torch_is_loaded_for_programs_on_a_server():
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
