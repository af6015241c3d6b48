"""What a head keeps of each token, whoever computed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from radixlm import Engine, SamplingParams
from radixlm.core.batch import ScheduledBatch
from radixlm.runner.draft_heads import HeadDrafter
from radixlm.testing.reference import make_checkpoint
from tests.tensor.eagle3_heads import make_head
from tests.tensor.mtp_layers import make_mtp_checkpoint


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["eagle3", "glm4_moe", "deepseek_v3"])
@pytest.mark.parametrize("seed", range(3))
def test_a_row_is_of_the_tokens_up_to_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    """Requests share prefixes, go on in other ways, are retracted, and evict each other: whoever
    reads a head's row finds what it is for these tokens alone, by a model that knows but that.
    """
    if kind == "eagle3":
        folder = make_checkpoint(tmp_path / "model", "llama")
        head: dict[str, Any] = {
            "speculative_algorithm": kind,
            "speculative_draft_model_path": str(make_head(tmp_path / "head", folder)),
        }
    else:
        folder, head = make_mtp_checkpoint(tmp_path, kind), {"speculative_algorithm": "mtp"}
    rows: dict[tuple[int, ...], torch.Tensor] = {}
    compared = 0
    step = HeadDrafter.step

    def checked(self: HeadDrafter, batch: ScheduledBatch, *given: Any) -> Any:
        nonlocal compared
        made = step(self, batch, *given)
        for row in batch.rows:
            slots = self._table[row.row, : row.known].long()
            keys, kept = self._pool.keys[0][slots].flatten(1), self._pool.index_keys[0][slots]
            for end in range(1, row.known + 1):
                # The first token has no row of keys.
                its = torch.cat((keys[end - 1] * (end > 1), kept[end - 1]))
                first = rows.setdefault((*row.tokens[:end].tolist(),), its)
                compared += first is not its
                assert torch.allclose(first, its, atol=1e-3), (end, row.tokens)
        return made

    monkeypatch.setattr(HeadDrafter, "step", checked)
    draw = torch.Generator().manual_seed(seed)
    flags = {**head, "kv_tokens": 96, "dtype": "float32", "chunked_prefill_size": 12}
    with Engine(str(folder), **flags) as engine:
        for _ in range(6):
            sizes = torch.randint(1, 24, (5,), generator=draw).tolist()
            prompts = [torch.randint(2, 4, (size,), generator=draw).tolist() for size in sizes]
            engine.generate(prompts, SamplingParams(max_tokens=12, temperature=1.0, seed=seed))
    assert compared > 500
