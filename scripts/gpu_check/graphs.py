"""Whether recorded steps give what the CPU gives, whatever lies in their memory by then."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from radixlm.memory.pools import KVPool
from radixlm.models import CausalLM, ModelConfig
from radixlm.testing.checkpoints import SHAPES
from scripts.gpu_check.place import Finding, Place
from scripts.gpu_check.steps import Step, runner_for

# Of each size one that is recorded, and others that are made again by it.
_STEPS = [
    Step("1 row", 1, 40),
    Step("1 row of 3,000", 1, 3_000),
    Step("3 rows", 3, 40),
    Step("4 rows over shared", 4, 90, shared=64),
    Step("3 rows over more", 3, 700, shared=600),
    Step("a chunk of 4", 1, 30, 4),
    Step("200 rows over shared", 200, 300, shared=256),
    Step("250 rows", 250, 20),
]
_SMALL = [Step("1 row", 1, 40), Step("4 rows over shared", 4, 90, shared=64)]
# Of logits with a deviation of about 1; by float32 in three TF32 products.
_NEAR = 1e-2


@torch.inference_mode()
def graphs(place: Place) -> Iterator[Finding]:
    """Logits of one model on both, the same keys and values before them, one step after another."""
    shape = dict(SHAPES["tiny" if place.small else "qwen3-0.6b"]) | {"num_hidden_layers": 2}
    config = ModelConfig.from_hf(shape | {"torch_dtype": "float32"})
    steps = _SMALL if place.small else _STEPS
    tokens = max(step.tokens for step in steps)
    longest = max(step.before + step.new for step in steps)
    most = Step("", max(step.rows for step in steps), longest - 1)._replace(shared=longest - 1)
    generator = torch.Generator().manual_seed(0)
    sides = []
    for device in ("cpu", place.device):
        model = CausalLM(config, dtype=torch.float32, device=torch.device(device))
        pool = KVPool(
            config.n_layers, tokens, config.n_kv_heads, config.head_dim, torch.float32, device
        )
        sides.append((model, pool, runner_for(model, most, place._replace(device=device), pool)))
    (here, known, expected), (there, kept, runner) = sides
    for name, weight in here.weights().items():
        weight.normal_(0, 0.02, generator=generator)
        there.weights()[name].copy_(weight)
    for mine, its in zip((*known.keys, *known.values), (*kept.keys, *kept.values), strict=True):
        its.copy_(mine.normal_(generator=generator))
    for turn, step in enumerate((*steps, *steps)):  # the second time all of them are made again
        batch = step.batch(begins=True)
        wanted = expected.compute(batch)[2]
        found = runner.compute(batch)[2][: len(wanted)].cpu()
        off = ((found - wanted).abs().max() / wanted.std()).item()
        name = f"{'again' if turn >= len(steps) else 'recorded'}: {step.name}"
        yield {"what": name, "ok": off < _NEAR, "off": f"{off:.1e}"}
