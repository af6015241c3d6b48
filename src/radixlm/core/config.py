"""The settings of an engine: one frozen dataclass, one field per flag, read by CLI and Python
alike.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from radixlm.core.errors import ConfigError
from radixlm.core.flags import (
    Rule,
    check_flags,
    expand_homes,
    flag,
    integer,
    number,
    one_of,
    option_name,
)

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["int8", "fp8", "int4"]
KVCacheDtype = Literal["auto", "int8"]
Speculation = Literal["auto", "tree", "eagle3", "mtp", "off"]
ModelImpl = Literal["auto", "radixlm", "transformers"]
DiskWritePolicy = Literal["selective", "evict", "all", "off"]
SchedulePolicy = Literal[
    "lpm", "fcfs", "dfs-weight", "lof", "shortest-prefill-first", "random", "priority"
]
# OpenMP ends the process, without a word, where it can not have as many as it was asked for.
_MOST_THREADS = 1024
_MOST_RANKS = 64
# Speculative algorithms whose drafts a head of the model makes, beside those of texts.
HEADS = ("eagle3", "mtp")
# What several ranks do not know yet.
_ALONE = ("lora_paths", "deterministic", "disk_cache", "host_kv_tokens")
_PAGE_SIZE = Rule(
    "must be a power of two",
    lambda value: type(value) is int and value > 0 and not value & (value - 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The settings that the user asked for. Raises ConfigError that names the flag and the
    value.
    """

    model: str | None = flag(
        None,
        "Folder in Hugging Face format, a GGUF file, or OWNER/NAME of the Hugging Face Hub, also "
        "OWNER/NAME:KIND of its GGUF files. Default: the embedded demo model.",
        heading="Model",
        path=True,
    )
    revision: str | None = flag(None, "Branch, tag or commit of a model of the Hub.")
    tokenizer: str | None = flag(
        None, "Folder or GGUF file of the tokenizer, if not the model's own.", path=True
    )
    chat_template: str | None = flag(
        None, "Jinja file that replaces the model's chat template.", path=True
    )
    dtype: DtypeName = flag(
        "auto",
        "Type of weights and, by default, KV; auto is the checkpoint's own, or bfloat16 for "
        "float16, which few CPUs compute with, and slower.",
        one_of(get_args(DtypeName)),
    )
    quantization: Quantization | None = flag(
        None,
        "Make the weights of products int8 or fp8 (E4M3), one scale per output, or int4, one per "
        "32 inputs, when they are loaded. Checkpoints that are quantized already need no flag.",
        one_of(get_args(Quantization)),
    )
    lora_paths: tuple[str, ...] = flag(
        (),
        "LoRA adapter in PEFT's format that requests may name, as NAME=FOLDER, or a folder whose "
        "name it takes; may be given several times.",
        Rule("is NAME=FOLDER, or a folder", lambda value: isinstance(value, str) and value != ""),
        path=True,
    )
    device: str = flag("auto", "cpu, cuda, cuda:1, ...; auto takes a GPU when there is one.")
    threads: int | None = flag(
        None,
        "Threads that compute on the CPU. Default: as many as processors, by affinity and the "
        "container's quota; steps use fewer where other processes want theirs.",
        integer(1, _MOST_THREADS),
    )
    tp_size: int = flag(
        1,
        "Ranks that each compute a part of every layer (tensor parallelism): processes with their "
        "own threads on a CPU, a GPU each with CUDA.",
        integer(1, _MOST_RANKS),
        also="tensor_parallel_size",
    )
    context_length: int | None = flag(
        None, "Longest prompt plus answer. Default: the model's.", integer(2)
    )
    model_impl: ModelImpl = flag(
        "auto",
        "Whose code computes the model: radixlm's, transformers' with attention over this cache; "
        "auto takes transformers' for architectures that radixlm has no file for.",
        one_of(get_args(ModelImpl)),
    )
    kv_tokens: int | None = flag(
        None,
        "Tokens that the KV pool holds. Default: from the memory that is free.",
        integer(2),
        heading="Cache",
    )
    swa_full_tokens_ratio: float = flag(
        0.8,
        "Of models in which some layers see a sliding window only: slots of these layers, as a "
        "share of --kv-tokens; at least one request's and a step's. 1: all layers have the same.",
        number(0.01, 1),
    )
    max_mamba_cache_size: int | None = flag(
        None,
        "Of models that carry states in place of keys and values: states that there is room for, "
        "of running requests and checkpoints. Default: in nine tenths of the KV pool's bytes, at "
        "most 4,096.",
        integer(2),
    )
    state_checkpoint_interval: int = flag(
        4096,
        "Of these models: tokens after which a request leaves a checkpoint of its state, beside "
        "those at branches and ends; 0 leaves no others.",
        integer(0),
    )
    kv_cache_dtype: KVCacheDtype = flag(
        "auto",
        "How keys and values are kept: auto as --dtype says; int8 with a scale for each token and "
        "head, nearly twice as many tokens of bfloat16 in the same memory.",
        one_of(get_args(KVCacheDtype)),
    )
    page_size: int = flag(
        1, "Tokens per page of the cache, a power of two; 1 shares every token.", _PAGE_SIZE
    )
    disable_radix_cache: bool = flag(False, "Share nothing and keep nothing after a request.")
    eviction_policy: str = flag(
        "lru",
        "lru, lfu, fifo, mru, filo, slru, priority, learned, or package.module:Class of your own.",
    )
    max_pinned_tokens: int | None = flag(
        None,
        "Tokens of the KV pool that may be pinned, by Engine.pin and by marks in prompts; no "
        "request may need them. Default: a quarter, or what the longest request leaves.",
        integer(0),
    )
    host_kv_tokens: int = flag(
        0,
        "Tokens of keys and values that are kept in host memory once the pool is short of room, in "
        "whole blocks; 0 for none. For a GPU: on a CPU it is the pool's own memory.",
        integer(0),
    )
    disable_cuda_graph: bool = flag(
        False,
        "Have the host launch each kernel of a GPU's step, also where it could be recorded.",
        also="enforce_eager",
    )
    disable_overlap_schedule: bool = flag(
        False,
        "On a GPU, schedule no step before the tokens of the last one are known.",
    )
    disk_cache: str | None = flag(
        None,
        "Folder for keys and values on a local disk: what is cached there outlives memory and this "
        "process. See docs/security.md for what lies in it.",
        Rule("names a folder", lambda value: isinstance(value, str) and value != ""),
        path=True,
    )
    disk_cache_gb: float = flag(
        16.0, "Most gigabytes (10^9 bytes) of all files in --disk-cache.", number(0.001, 1e6)
    )
    disk_cache_strict: bool = flag(
        False,
        "Do not start with a damaged index in --disk-cache. Default: it is set aside, and another "
        "made from the blocks.",
    )
    disk_write_policy: DiskWritePolicy = flag(
        "selective",
        "What is written to --disk-cache, in the background: what was used twice, and while there "
        "is room what is evicted next, as evict always does; or all; off reads only.",
        one_of(get_args(DiskWritePolicy)),
    )
    disk_block_tokens: int = flag(
        128, "Tokens per block on disk, and in host memory; a multiple of --page-size.", integer(1)
    )
    schedule_policy: SchedulePolicy = flag(
        "lpm",
        "Who is admitted first: longest cached prefix, first come, most shared branch, longest "
        "output, fewest tokens to compute, by lot, or highest priority.",
        one_of(get_args(SchedulePolicy)),
        heading="Scheduler",
    )
    schedule_seed: int = flag(0, "Seed of --schedule-policy random.", integer(0))
    max_wait_admissions: int = flag(
        1_000,
        "Younger requests of its priority and tenant that may be admitted before a waiting one.",
        integer(1),
    )
    priority_scheduling_preemption_threshold: int = flag(
        10,
        "With --schedule-policy priority, a request takes the place of a running one whose "
        "priority is lower by at least this.",
        integer(1),
    )
    schedule_conservativeness: float = flag(
        1.0,
        "More reserves more of the pool for running requests; 0 reserves nothing.",
        number(0, 10),
    )
    chunked_prefill_size: int = flag(
        2048,
        "Token budget of a step; a longer prompt is computed in chunks between others.",
        integer(1),
    )
    max_running_requests: int = flag(
        256,
        "Requests that run at the same time; never more than --chunked-prefill-size.",
        integer(1),
    )
    disable_jump_forward: bool = flag(
        False, "Ask the model for every token of an answer, those that its grammar forces too."
    )
    speculative_algorithm: Speculation = flag(
        "off",
        "Where drafts come from, tokens that are computed along and count if they are what is "
        "drawn, so that answers stay the same: tree, of what was written before; auto, the same, "
        "as many as pay by what steps take; eagle3, the same, and a head of the model; mtp, the "
        "same, and the layer for it in the model's own files; off, none.",
        one_of(get_args(Speculation)),
    )
    speculative_num_draft_tokens: int = flag(
        15,
        "Most tokens of a draft; with the last one that is known 16, which are multiplied at once.",
        integer(1, 64),
    )
    speculative_draft_model_path: str | None = flag(
        None,
        "Folder of the model's EAGLE-3 head, for --speculative-algorithm eagle3; the demo model "
        "has its own.",
        path=True,
    )
    draft_corpus: str | None = flag(
        None,
        "File or folder of texts that drafts are also taken from, for all who use this server.",
        path=True,
    )
    deterministic: bool = flag(
        False,
        "A request's tokens and log-probabilities have the same bits alone and in company, from "
        "the cache and computed anew, on the same machine with the same --threads. For CPUs.",
    )
    max_queued_requests: int = flag(
        10_000, "Requests that wait or run; more are refused.", integer(1)
    )

    def __post_init__(self) -> None:
        expand_homes(self)
        check_flags(self)
        if self.disable_radix_cache and self.max_pinned_tokens:
            raise ConfigError("--max-pinned-tokens has no use with --disable-radix-cache")
        if self.state_checkpoint_interval % self.page_size:
            raise ConfigError(
                f"--state-checkpoint-interval must be a multiple of --page-size {self.page_size}, "
                f"got {self.state_checkpoint_interval}"
            )
        self._check_stores()
        self._check_ranks()
        if self.draft_corpus and self.speculative_algorithm == "off":
            raise ConfigError("--draft-corpus has no use with --speculative-algorithm off")
        if self.speculative_draft_model_path and self.speculative_algorithm != "eagle3":
            raise ConfigError(
                "--speculative-draft-model-path has no use without --speculative-algorithm eagle3"
            )
        if self.deterministic and self.device.startswith("cuda"):
            raise ConfigError("--deterministic is for CPUs; it does not go with --device cuda")

    @property
    def request_rows(self) -> int:
        """Requests that can run together: each computes one token of a step at least."""
        return min(self.max_running_requests, self.chunked_prefill_size)

    def _check_ranks(self) -> None:
        for name in _ALONE:
            if self.tp_size > 1 and getattr(self, name):
                raise ConfigError(f"{option_name(name)} does not go with --tp-size {self.tp_size}")

    def _check_stores(self) -> None:
        block, host = self.disk_block_tokens, self.host_kv_tokens
        for name, given in (("--host-kv-tokens", host), ("--disk-cache", self.disk_cache)):
            if given and self.disable_radix_cache:
                raise ConfigError(f"{name} has no use with --disable-radix-cache")
        for item in fields(self):
            of_disk = item.name.startswith("disk_") and not self.disk_cache
            of_both = item.name == "disk_block_tokens" and host
            if of_disk and not of_both and getattr(self, item.name) != item.default:
                name = option_name(item.name)
                raise ConfigError(f"{name} has no use without --disk-cache DIR: give both, or none")
        if (host or self.disk_cache) and block % self.page_size:
            raise ConfigError(
                f"--disk-block-tokens must be a multiple of --page-size {self.page_size}, got "
                f"{block}"
            )
        if 0 < host < block:
            raise ConfigError(
                f"--host-kv-tokens {host} has no room for a block: give at least "
                f"--disk-block-tokens, which are {block}, or 0 for none"
            )

    @classmethod
    def from_flags(cls, **flags: Any) -> EngineConfig:
        """Make a config from keywords; an unknown one is an error that lists the known ones."""
        known = [item.name for item in fields(cls)]
        for name in flags:
            if name not in known:
                raise ConfigError(f"unknown flag {name!r}; known are {', '.join(known)}")
        return cls(**flags)


def check_page_size(page_size: int) -> None:
    """Raise ConfigError unless `page_size` is a power of two."""
    if not _PAGE_SIZE.holds(page_size):
        raise ConfigError(f"--page-size {_PAGE_SIZE.text}, got {page_size!r}")
