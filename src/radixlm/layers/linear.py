"""Projections, norms and embeddings: plain frozen weights, fused where one input meets several
matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.core.errors import ModelError
from radixlm.kernels.gpu_launch import Launch, aligned, has_kernels, power_of_two, row_kernel
from radixlm.kernels.openmp import Worker, threads_for
from radixlm.products.compiled import (
    ROWS_PER_UNIT,
    Gate,
    Gated,
    GateKind,
    TensorOptions,
    norm_kernel,
)
from radixlm.products.gemm_choice import PLAIN, Choose, GemmChoice, Product, Weight, packed, plain
from radixlm.products.gpu_products import GpuProduct, knows
from radixlm.products.panel_products import PanelProduct
from radixlm.products.quantized import QuantizedWeight, WeightKind, stacked
from radixlm.products.quantized_products import DTYPES, QuantizedProduct
from radixlm.products.quantized_rows import QuantizedRows

# Of a weight (out, in).
Quantize = Callable[[Tensor], QuantizedWeight]


class Linear:
    """One matrix product for several projections of the same input, stacked by rows.

    parts: output size of each projection, by the name that the checkpoint gives it; a checkpoint's
        tensors are copied straight into the rows that `named_weights` shows.
    result: the type of what it gives. gate: the first half of what the weights give are gates of
        the second, and it gives gate(first) * second.
    The memory is not initialised: the loader fills it, then `pack` may lay it out for the machine.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        options: TensorOptions,
        *,
        bias: bool,
        gate: GateKind | None = None,
    ) -> None:
        self.parts = dict(parts)
        self.inputs = in_features
        rows = sum(self.parts.values())
        self._device = options.device
        at_first = torch.device("meta") if options.in_turn else options.device
        self.weight = options._replace(device=at_first).empty(rows, in_features)
        self.bias = options.empty(rows) if bias else None
        self._packed: Callable[..., Tensor] | None = None
        self._quantized: dict[str, QuantizedWeight] = {}
        self.result = options.dtype
        self.gate = None if gate is None else Gate(options, gate)

    @property
    def is_compiled(self) -> bool:
        """Whether it is nothing but calls of workers."""
        return self.product is not None or isinstance(self._packed, SideBySide)

    @property
    def product(self) -> PanelProduct | QuantizedProduct | None:
        """The call, if it is one of a worker."""
        its = self._packed
        return its if isinstance(its, PanelProduct | QuantizedProduct) else None

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """(tokens, in_features) -> (tokens, sum of the parts), half as many if gated. out: memory
        for that; only one that is compiled takes it.
        """
        if self._packed is not None:
            return self._packed(x) if out is None else self._packed(x, out)
        made = plain(x, self.weight, self.bias, self.result)
        return made if self.gate is None else self.gate(made)

    @property
    def middle(self) -> int:
        """The first output that gates multiply; 0: there are no gates."""
        return 0 if self.gate is None else sum(self.parts.values()) // 2

    @property
    def in_turns(self) -> bool:
        """Whether `ungated` gives vectors of gates and of what they multiply in turns, instead of
        all gates first.
        """
        return self.gate is not None and self.product is not None

    def ungated(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The input of a gated one's gate, (tokens, in_features) -> (tokens, sum of the parts).
        out: see `__call__`.
        """
        its = self._packed
        if isinstance(its, PanelProduct | QuantizedProduct):
            return its.ungated(x, out)
        if isinstance(its, Gated):
            return its.ungated(x)
        return plain(x, self.weight, self.bias, self.result)

    @property
    def takes_codes(self) -> bool:
        """Whether products with quantized weights are here. Elsewhere memory is filled with what
        the codes stand for, wherever the codes themselves lie.
        """
        return self._device.type == "cpu" or self._on_gpu

    @property
    def _on_gpu(self) -> bool:
        return has_kernels(self._device.type)

    def make_room(self) -> dict[str, Tensor]:
        """Take the memory of its weight, where it has none yet; returns `named_weights`."""
        if self.weight.is_meta:
            self.weight = torch.empty_like(self.weight, device=self._device)
        return dict(self.named_weights())

    def put(self, part: str, weight: QuantizedWeight) -> None:
        """Take a part's weight as it is, instead of filling its memory; before `pack`, and where
        it `takes_codes`.
        """
        self._quantized[part] = weight

    def pack(self, choose: Choose, quantize: Quantize | None = None) -> None:
        """Replace the weight by one that is laid out for the machine, where that is faster or
        quantized. From then on there are no named weights. Of a tied head a copy is packed: the
        embedding's rows are looked up, and reading the head unpacked takes several times as long as
        reading all of a small model's layers.
        """
        if self._packed is not None:
            return
        pieces = self._pieces()
        if quantize is not None:
            pieces = [quantize(each) if isinstance(each, Tensor) else each for each in pieces]
        if len(pieces) == 1:
            choice = self._choice(pieces[0], choose, self.gate)
            if isinstance(pieces[0], QuantizedWeight) or choice.layout != "rows" or choice.block:
                self._packed = self._product(pieces[0], choice, self.bias, self.gate)
        else:
            self._packed = self._side_by_side(pieces, choose)
        if self._packed is not None:
            self.weight, self.bias = self.weight.new_empty(0), None
            self._quantized.clear()

    def _pieces(self) -> list[Weight]:
        """The weight, or, where parts are quantized, as few as can be: those of neighbours of one
        kind are one.
        """
        if not self._quantized:
            return [self.weight]
        if not self.parts:  # a tied head
            return list(self._quantized.values())
        pieces: list[Weight] = []
        sizes, start = self.parts.items(), 0
        for kind, group in itertools.groupby(sizes, key=lambda item: self._kind(item[0])):
            parts = dict(group)
            stop = start + sum(parts.values())
            if kind is None:
                pieces.append(self.weight[start:stop])
            else:
                pieces.append(stacked([self._quantized[name] for name in parts]))
            start = stop
        return pieces

    def _kind(self, part: str) -> WeightKind | None:
        weight = self._quantized.get(part)
        return None if weight is None else weight.kind

    def _choice(self, weight: Weight, choose: Choose, gate: Gate | None) -> GemmChoice:
        foreign = self._on_gpu or self.weight.dtype not in DTYPES
        if isinstance(weight, QuantizedWeight) and foreign:
            return PLAIN
        return choose(weight, self.result, gate)

    def _product(
        self, weight: Weight, choice: GemmChoice, bias: Tensor | None, gate: Gate | None
    ) -> Product:
        if isinstance(weight, QuantizedWeight) and self._on_gpu and knows(weight):
            made = GpuProduct.coded(weight, bias, self.weight.dtype, self.result, self._device)
            return made if gate is None else Gated(made, gate)
        if isinstance(weight, QuantizedWeight) and choice.layout == "rows":
            weight = weight.dequantized().to(self._device, self.weight.dtype)
        return packed(choice, weight, bias, self.weight.dtype, self.result, gate)

    def _side_by_side(self, pieces: Sequence[Weight], choose: Choose) -> Product:
        """A product for each piece; the gate takes what they give together."""
        products, start = [], 0
        for piece in pieces:
            stop = start + piece.shape[0]
            bias = None if self.bias is None else self.bias[start:stop]
            choice = self._choice(piece, choose, None)
            products.append(self._product(piece, choice, bias, None))
            start = stop

        known = [each for each in products if isinstance(each, PanelProduct | QuantizedProduct)]
        if self.gate is None and len(known) == len(products):
            return SideBySide(known)

        def product(x: Tensor) -> Tensor:
            return torch.cat([each(x) for each in products], dim=1)

        return product if self.gate is None else Gated(product, self.gate)

    @classmethod
    def joined(cls, linears: Sequence[Linear]) -> GpuProduct | None:
        """One product on a GPU, of rows that each have one of these, without their gates. None:
        they are not alike.
        """
        first = linears[0]
        if all(linear._packed is None for linear in linears):
            weight = torch.stack([linear.weight for linear in linears])
            biases = [linear.bias for linear in linears if linear.bias is not None]
            for linear, its in zip(linears, weight, strict=True):
                linear.weight = its
            return GpuProduct.plain(weight, torch.stack(biases) if biases else None, first.result)
        packed = [linear._packed for linear in linears]
        whole = [each.ungated if isinstance(each, Gated) else each for each in packed]
        known = [each for each in whole if isinstance(each, GpuProduct)]
        return GpuProduct.joined(known) if len(known) == len(linears) else None

    def lie_in(self, whole: GpuProduct) -> None:
        """Keep no weights but those in a product of many, by which it is computed from now on."""
        if self._packed is not None:
            self._packed = whole

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each part's `<name>.weight` and `<name>.bias`, as views of the stacked memory."""
        if self._packed is not None:
            raise ModelError("packed weights have no names any more")
        start = 0
        for name, size in self.parts.items():
            yield f"{name}.weight", self.weight[start : start + size]
            if self.bias is not None:
                yield f"{name}.bias", self.bias[start : start + size]
            start += size


class SideBySide:
    """Products of the same rows, each a call of a worker, whose results are side by side."""

    def __init__(self, products: Sequence[PanelProduct | QuantizedProduct]) -> None:
        self._products = products
        self._widths = [product.outputs for product in products]

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """(tokens, in) -> (tokens, out). out: where that is to be, if not in new memory."""
        if out is None:
            out = x.new_empty((x.shape[0], sum(self._widths)), dtype=self._products[0].result)
        for product, part in zip(self._products, out.split(self._widths, dim=1), strict=True):
            product(x, part)
        return out


class RMSNorm:
    """x / rms(x) * weight over the last dimension (Zhang and Sennrich, 2019); the mean is taken in
    float32 whatever the type of x. The weight may be filled later, but not replaced.
    """

    def __init__(self, size: int, eps: float, options: TensorOptions) -> None:
        self.eps = eps
        self.weight = options.empty(size)
        self._worker: Worker | None = None
        self._on_gpu = row_kernel("add_norm", options.device.type)
        if options.known(size):
            self._worker = Worker(
                norm_kernel(bfloat16=options.dtype == torch.bfloat16),
                weight=self.weight.data_ptr(),
                eps=bits_of(eps),
            )

    @property
    def is_compiled(self) -> bool:
        """Whether it is one call of a worker."""
        return self._worker is not None

    def __call__(self, x: Tensor, added: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Add `added` to x, in place, and norm the sum: (tokens, size) -> (tokens, size), new or,
        if compiled, in `out`, whose rows may lie apart. The others are contiguous.
        """
        if self._worker is None:
            if self._on_gpu is not None and x.is_contiguous():
                return add_norm(self._on_gpu, x, added, self.weight, self.eps)
            if added is not None:
                x.add_(added)
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        out = torch.empty_like(x) if out is None else out
        arguments = self._worker.arguments
        arguments.rows, arguments.width = x.shape
        arguments.hidden, arguments.out = x.data_ptr(), out.data_ptr()
        arguments.stride = out.stride(0) * out.element_size()
        arguments.added = 0 if added is None else added.data_ptr()
        self._worker(threads_for(x.shape[0], ROWS_PER_UNIT))
        return out

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight


def add_norm(launch: Launch, x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """See `RMSNorm`, of a GPU."""
    out, size = torch.empty_like(x), x.shape[1]
    constants = {"SIZE": size, "D": power_of_two(size)}
    given = x, added, weight, out, eps
    key = added is None, aligned(x), aligned(added)
    launch(key, (x.shape[0],), given, constants, num_warps=8)
    return out


def bits_of(number: float) -> int:
    """The bits of a float32, as compiled code is given it."""
    bits: int = np.float32(number).view(np.int32).item()
    return bits


class QueryKeyNorm:
    """RMSNorm of every query head and every key head by itself, as Qwen3 does before rotary. The
    weights may be filled later, but not replaced. names: of these; empty: all are 1. after: it
    comes after rotary.
    """

    def __init__(
        self,
        n_heads: int,
        head_dim: int,
        eps: float,
        options: TensorOptions,
        names: Sequence[str] = ("q_norm.weight", "k_norm.weight"),
        *,
        after: bool = False,
    ) -> None:
        self.n_heads, self.after = n_heads, after
        self.eps, self._names = eps, names
        self.q_weight, self.k_weight = options.empty(head_dim), options.empty(head_dim)
        if not names:
            self.q_weight.fill_(1)
            self.k_weight.fill_(1)
        self.eps_bits = bits_of(eps)

    @cached_property
    def addresses(self) -> tuple[int, int]:
        """The addresses of the weights, for compiled code."""
        return self.q_weight.data_ptr(), self.k_weight.data_ptr()

    def __call__(self, qk: Tensor) -> Tensor:
        """(tokens, n_heads + n_kv_heads, head_dim), query heads first -> the same shape, new."""
        normed = functional.rms_norm(qk, self.q_weight.shape, None, self.eps)
        normed[:, : self.n_heads].mul_(self.q_weight)
        normed[:, self.n_heads :].mul_(self.k_weight)
        return normed

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from zip(self._names, (self.q_weight, self.k_weight), strict=False)


class TokenEmbedding:
    """A row per token of the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int, options: TensorOptions) -> None:
        self.vocab_size = vocab_size
        self.weight = options.empty(vocab_size, hidden_size)
        self._rows: QuantizedRows | None = None

    def look_up(self, rows: QuantizedRows) -> None:
        """Take quantized rows, instead of filling its memory, which goes."""
        self._rows, self.weight = rows, self.weight.new_empty(0)

    def __call__(self, token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        """(tokens,) int64 -> (tokens, hidden_size), new memory or `out`."""
        if self._rows is not None:
            return self._rows(token_ids, out)
        return torch.index_select(self.weight, 0, token_ids, out=out)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        if self._rows is None:
            yield "weight", self.weight


class LMHead(Linear):
    """Scores of every token of the vocabulary, float32; tied, its weight is the embedding's."""

    def __init__(self, embedding: TokenEmbedding, *, tied: bool) -> None:
        vocab, hidden = embedding.weight.shape
        options = TensorOptions(embedding.weight.dtype, embedding.weight.device)
        super().__init__(hidden, {} if tied else {"lm_head": vocab}, options, bias=False)
        if tied:
            self.weight = embedding.weight
        self.result = torch.float32
