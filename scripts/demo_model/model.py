"""The Llama architecture, as small as it gets, with parameters named as Hugging Face names them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from .tokenizer import VOCAB

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 256, 5, 4, 2, 64, 640
CONTEXT, THETA, EPS = 4096, 10000.0, 1e-5


def _linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias=False)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (HIDDEN,), self.weight.to(x.dtype), EPS)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = _linear(HIDDEN, HEADS * HEAD_DIM)
        self.k_proj = _linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.v_proj = _linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.o_proj = _linear(HEADS * HEAD_DIM, HIDDEN)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            proj(x).view(rows, length, -1, HEAD_DIM).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        groups = HEADS // KV_HEADS
        k = _rotate(k, cos, sin).repeat_interleave(groups, 1)
        out = functional.scaled_dot_product_attention(
            _rotate(q, cos, sin), k, v.repeat_interleave(groups, 1), is_causal=True
        )
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))
        return mixed


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = _linear(HIDDEN, MLP)
        self.up_proj = _linear(HIDDEN, MLP)
        self.down_proj = _linear(MLP, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = Norm()
        self.self_attn = Attention()
        self.post_attention_layernorm = Norm()
        self.mlp = Mlp()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DemoModel(nn.Module):
    """Returns the weighted mean loss, the only thing training asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                small = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * LAYERS) ** 0.5 if small else 0.02)

    def forward(self, ids: Tensor, weights: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = functional.embedding(ids[:, :-1], self.embed_tokens.weight).to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = functional.linear(self.norm(x), self.embed_tokens.weight.to(torch.bfloat16))
        losses = functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        kept = weights[:, 1:].flatten()
        return (losses * kept).sum() / kept.sum()


def rotary_table() -> tuple[Tensor, Tensor]:
    """cos and sin for every position of the context, one row each."""
    frequencies = THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(CONTEXT).float(), frequencies).repeat(1, 2)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def hf_config(bos: int, eos: int, pad: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "use_cache": True,
    }


def save_model(model: DemoModel, folder: Path, bos: int, eos: int, pad: int) -> None:
    """bfloat16 weights under their usual names; the tied head is left out, as is usual too."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"model.{name}": weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in model.named_parameters()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = hf_config(bos, eos, pad)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "do_sample": False,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load_weights(model: DemoModel, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in tensors.items()})
