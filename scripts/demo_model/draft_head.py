"""An EAGLE-3 head for the demo model: learns to go on from what the model's layers know.

At place t it takes the model's states of token t and the embedding of token t + 1, and says what
the model writes at t + 2; from there it goes on from its own states. It is trained on what the
model writes itself, and so that its own states do as well as the model's (EAGLE-3's test in
training):

    round 0   state of the model at t        token t + 1   ->  the model's choice at t + 2
    round 1   its own state from round 0     token t + 2   ->  the model's choice at t + 3
    ...
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from radixlm import Engine, SamplingParams

from .corpus import Messages, short_documents
from .model import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    DemoModel,
    Layer,
    Mlp,
    Norm,
    hf_config,
    load_weights,
    rotary_table,
)
from .questions import Rng
from .tokenizer import Packer, special_ids, text_of
from .training import ADAM_LR, MUON_LR, OTHER_WEIGHT, Muon, keep_freed_memory, learning_rate

# Layers after which states are taken; tokens that a draft may have.
TAKEN, DRAFT_VOCAB = (0, 2, 4), 1024
# Tokens of a row, rows of a step, rounds of which the loss is summed, each counting less.
_LENGTH, _ROWS, _ROUNDS, _LATER = 256, 8, 5, 0.85
# Up to this share of the training there are fewer rounds.
_FIRST, _FIRST_ROUNDS = 0.5, 2
# Steps between two that a head is saved after.
_SAVED = 100
# Documents that are answered at once, the share of them that is sampled, and longest answers.
_AT_ONCE, _SAMPLED, _LONGEST = 1500, 0.3, 160
_ANSWER = "<|assistant|>"


class DraftAttention(nn.Module):
    """Attention of a round: causal over what round 0 made, and over this place's later rounds."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"q_proj": HEADS, "k_proj": KV_HEADS, "v_proj": KV_HEADS}
        for name, heads in sizes.items():
            self.add_module(name, nn.Linear(2 * HIDDEN, heads * HEAD_DIM, bias=False))
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], before: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """before: keys and values of the rounds before; this one's are appended."""
        rows, length, _ = x.shape
        q, k, v = (
            module(x).view(rows, length, -1, HEAD_DIM).transpose(1, 2)
            for name, module in self.named_children()
            if name != "o_proj"
        )
        cos, sin = turn

        def turned(of: Tensor) -> Tensor:
            first, second = of.chunk(2, -1)
            return of * cos + torch.cat((-second, first), -1) * sin

        groups = HEADS // KV_HEADS
        q, k = turned(q), turned(k).repeat_interleave(groups, 1)
        before.append((k, v.repeat_interleave(groups, 1)))
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = [(q @ before[0][0].mT).masked_fill(hidden, -1e9)]
        scores += [(q * keys).sum(-1, keepdim=True) for keys, _ in before[1:]]
        weights = (torch.cat(scores, -1).float() * HEAD_DIM**-0.5).softmax(-1).to(q.dtype)
        mixed = weights[..., :length] @ before[0][1]
        for at, (_, values) in enumerate(before[1:]):
            mixed = mixed + weights[..., length + at, None] * values
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))
        return out


class MidLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = DraftAttention()
        self.input_layernorm, self.hidden_norm = Norm(), Norm()
        self.post_attention_layernorm = Norm()
        self.mlp = Mlp()


class DraftHead(nn.Module):
    """The head, with parameters named as published ones are. It begins as the model's last layer.

    kept: (DRAFT_VOCAB,) tokens that drafts are of, rising.
    """

    def __init__(self, model: DemoModel, kept: Tensor) -> None:
        super().__init__()
        self.fc = nn.Linear(len(TAKEN) * HIDDEN, HIDDEN, bias=False)
        self.midlayer = MidLayer()
        self.norm = Norm()
        self.lm_head = nn.Linear(HIDDEN, len(kept), bias=False)
        self.kept: Tensor
        self.register_buffer("kept", kept)
        last, mine = model.layers[-1], self.midlayer
        assert isinstance(last, Layer)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)[:, -HIDDEN:] += torch.eye(HIDDEN)
            self.lm_head.weight.copy_(model.embed_tokens.weight[kept])
            self.norm.load_state_dict(model.norm.state_dict())
            mine.mlp.load_state_dict(last.mlp.state_dict())
            mine.post_attention_layernorm.load_state_dict(
                last.post_attention_layernorm.state_dict()
            )
            for name, part in mine.self_attn.named_parameters():
                theirs = last.self_attn.get_parameter(name)
                part[:, -theirs.shape[1] :] = theirs

    def forward(
        self,
        taken: Tensor,
        embedded: Tensor,
        scores: Tensor,
        counts: Tensor,
        turn: tuple[Tensor, Tensor],
        rounds: int,
    ) -> tuple[Tensor, Tensor]:
        """The loss over so many rounds, and how often the head is right in each, where all before
        is. taken, scores: see `taught`. counts: of each token, in the loss.
        """
        wanted, choice = scores.float()[..., self.kept].softmax(-1), scores.argmax(-1)
        hidden, before, total = self.fc(taken), list[tuple[Tensor, Tensor]](), torch.zeros(())
        rights, length = [], taken.shape[1]
        cos, sin = turn
        for number in range(rounds):
            # The last places have no token so far ahead: they are given others, and do not count.
            ahead = number + 1
            its = cos.roll(-number, 0), sin.roll(-number, 0)
            hidden, guessed = self.round(embedded.roll(-ahead, 1), hidden, its, before)
            there = slice(0, length - ahead - 1)
            count = counts.roll(-ahead - 1, 1)[:, there]
            count = count / count.sum()
            logs = guessed[:, there].float().log_softmax(-1)
            cross = -(wanted.roll(-ahead, 1)[:, there] * logs).sum(-1)
            total = total + _LATER**number * (cross * count).sum()
            right = self.kept[logs.argmax(-1)] == choice.roll(-ahead, 1)[:, there]
            rights.append((right * count).sum())
        return total, torch.stack(rights)

    def round(
        self,
        embedded: Tensor,
        hidden: Tensor,
        turn: tuple[Tensor, Tensor],
        before: list[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Its state, and scores of `kept`. hidden: the state before."""
        its = self.midlayer
        both = torch.cat((its.input_layernorm(embedded), its.hidden_norm(hidden)), -1)
        hidden = hidden + its.self_attn(both, turn, before)
        hidden = hidden + its.mlp(its.post_attention_layernorm(hidden))
        return hidden, self.lm_head(self.norm(hidden))


@torch.no_grad()
def taught(
    model: DemoModel, ids: Tensor, turn: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The states that the head is given, embeddings, and the model's scores, of each token."""
    x = embedded = functional.embedding(ids, model.embed_tokens.weight).to(torch.bfloat16)
    taken = []
    for index, layer in enumerate(model.layers):
        x = layer(x, *turn)
        if index in TAKEN:
            taken.append(x)
    scores = functional.linear(model.norm(x), model.embed_tokens.weight.to(torch.bfloat16))
    return torch.cat(taken, -1), embedded, scores


class OwnTexts:
    """Documents as the model goes on with them: chats to a random answer, texts from a place."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._documents = short_documents(Rng(seed), 24)
        self._rng = Rng(seed + 1)
        self._engine = Engine(str(folder), speculative_algorithm="off", kv_tokens=1 << 16)

    def __iter__(self) -> Iterator[str]:
        while True:
            prompts = [self._begun(each) for each in islice(self._documents, _AT_ONCE)]
            params = [
                SamplingParams(
                    temperature=float(self._rng.random() < _SAMPLED),
                    max_tokens=_LONGEST,
                    skip_special_tokens=False,
                )
                for _ in prompts
            ]
            outputs = self._engine.generate(prompts, params)
            for prompt, output in zip(prompts, outputs, strict=True):
                yield prompt + output.text

    def _begun(self, document: Messages | str) -> str:
        text = text_of(document)
        if isinstance(document, str):
            return text[: self._rng.randrange(4, max(len(text) // 2, 5))]
        answers = text.split(_ANSWER)
        return _ANSWER.join(answers[: self._rng.randrange(1, len(answers))]) + _ANSWER


class OwnRows:
    """Rows of tokens and of what each counts, each beginning with a document."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterator[str]) -> None:
        self._packer, self._texts = Packer(tokenizer), texts
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._weights: list[float] = []

    def take(self, count: int) -> tuple[Tensor, Tensor]:
        """(count, _LENGTH) ids and their weights."""
        size = count * _LENGTH
        while len(self._ids) < size:
            ids = self._tokenizer.encode(next(self._texts)).ids
            self._ids += ids
            self._weights += self._packer.weights(ids, OTHER_WEIGHT)
        ids, self._ids = self._ids[:size], self._ids[size:]
        weights, self._weights = self._weights[:size], self._weights[size:]
        shape = count, _LENGTH
        return torch.tensor(ids).view(shape), torch.tensor(weights).view(shape)


def _step(
    head: Callable[..., tuple[Tensor, Tensor]],
    teach: Callable[..., tuple[Tensor, Tensor, Tensor]],
    model: DemoModel,
    rows: OwnRows,
    turn: tuple[Tensor, Tensor],
    rounds: int,
) -> tuple[float, np.ndarray]:
    """Gradients of one step; its loss, and how often the head was right by round."""
    ids, counts = rows.take(_ROWS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        taken, embedded, scores = teach(model, ids, turn)
        loss, rights = head(taken, embedded, scores, counts, turn, rounds)
    loss.backward()
    return loss.item(), rights.detach().numpy()


def trained(folder: Path, out: Path, steps: int, seed: int) -> str:
    """Trains a head for the model in `folder` into `out`; what came of it, in words."""
    keep_freed_memory()
    torch.manual_seed(seed)
    model, tokenizer = DemoModel(), Tokenizer.from_file(str(folder / "tokenizer.json"))
    load_weights(model, folder)
    model.requires_grad_(requires_grad=False)
    texts = iter(OwnTexts(folder, seed))
    seen = np.bincount(
        np.concatenate([tokenizer.encode(text).ids for text in islice(texts, 2 * _AT_ONCE)]),
        minlength=model.embed_tokens.num_embeddings,
    )
    kept = torch.from_numpy(np.sort(np.argsort(-seen, kind="stable")[:DRAFT_VOCAB]))
    head, rows = DraftHead(model, kept), OwnRows(tokenizer, texts)
    matrices = [w for name, w in head.named_parameters() if w.dim() == 2 and "lm_head" not in name]
    others = [w for name, w in head.named_parameters() if w.dim() == 1 or "lm_head" in name]
    muon, adam = Muon(matrices), torch.optim.AdamW(others, ADAM_LR, (0.9, 0.98), weight_decay=0.0)
    tables, rng, average = rotary_table(), Rng(seed + 2), np.zeros(_ROUNDS)
    compiled, teach = torch.compile(head, dynamic=False), torch.compile(taught, dynamic=False)
    for rounds in (_FIRST_ROUNDS, _ROUNDS):  # so that the clock does not run meanwhile
        _step(compiled, teach, model, rows, (tables[0][:_LENGTH], tables[1][:_LENGTH]), rounds)
    head.zero_grad()
    began, shown = time.monotonic(), ""
    with tqdm(range(steps), unit="step") as bar:
        for step in bar:
            progress = step / steps
            place = torch.arange(_LENGTH) + rng.choice([0, 0, rng.randrange(0, 3840 - _ROUNDS)])
            rounds = _FIRST_ROUNDS if progress < _FIRST else _ROUNDS
            turn = tables[0][place], tables[1][place]
            loss, rights = _step(compiled, teach, model, rows, turn, rounds)
            rate = learning_rate(progress)
            muon.step({id(w): w.grad for w in matrices if w.grad is not None}, MUON_LR / 2 * rate)
            torch.nn.utils.clip_grad_norm_(others, 1.0)
            adam.param_groups[0]["lr"] = ADAM_LR / 4 * rate
            adam.step()
            head.zero_grad()
            average[:rounds] += (rights - average[:rounds]) * max(0.02, 1 / (step + 1))
            shown = " ".join(f"{100 * each:.1f}" for each in average)
            bar.set_postfix_str(f"loss {loss:.3f}, right {shown} %")
            if not (step + 1) % _SAVED or step + 1 == steps:
                save_head(head, tokenizer, out)
    minutes = (time.monotonic() - began) / 60
    return f"{steps} steps of {_ROWS * _LENGTH} tokens, {minutes:.1f} minutes; right {shown} %"


def save_head(head: DraftHead, tokenizer: Tokenizer, folder: Path) -> None:
    """In the format of published heads: bfloat16 weights, `d2t` and `t2d`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in head.named_parameters()
    }
    config = hf_config(*special_ids(tokenizer))
    vocabulary = tokenizer.get_vocab_size()
    tensors["d2t"] = head.kept - torch.arange(len(head.kept))
    tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, head.kept, True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "draft_vocab_size": len(head.kept),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [*TAKEN]},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
