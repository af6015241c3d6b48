"""What the user may set: one frozen dataclass, one field per flag, read by CLI and Python alike."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from radixlm.core.errors import ConfigError

DtypeName = Literal["auto", "float32", "bfloat16"]
SchedulePolicy = Literal[
    "lpm", "fcfs", "dfs-weight", "lof", "shortest-prefill-first", "random", "priority"
]


def _flag(default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


# OpenMP ends the process, without a word, where it can not have as many as it was asked for.
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the user asked for; values that depend on the model are resolved in `build`.

    Raises ConfigError that names the flag and the value.
    """

    model: str | None = _flag(
        None, "Local folder in Hugging Face format. Default: the embedded demo model."
    )
    tokenizer: str | None = _flag(None, "Folder of the tokenizer, when it is not the model's own.")
    chat_template: str | None = _flag(None, "Jinja file that replaces the model's chat template.")
    dtype: DtypeName = _flag(
        "auto", "Type of weights and KV; auto is the checkpoint's own.", get_args(DtypeName)
    )
    device: str = _flag("auto", "cpu, cuda, cuda:1, ...; auto takes a GPU when there is one.")
    threads: int | None = _flag(
        None,
        "Threads that compute on the CPU. Default: as many as processors, by affinity and the "
        "container's quota; steps use fewer where other processes want theirs.",
    )
    context_length: int | None = _flag(None, "Longest prompt plus answer. Default: the model's.")
    kv_tokens: int | None = _flag(
        None, "Tokens that the KV pool holds. Default: from the memory that is free."
    )
    page_size: int = _flag(1, "Tokens per page of the cache, a power of two; 1 shares every token.")
    disable_radix_cache: bool = _flag(False, "Share nothing and keep nothing after a request.")
    eviction_policy: str = _flag(
        "lru", "lru, lfu, fifo, mru, filo, slru, priority, or package.module:Class of your own."
    )
    max_pinned_tokens: int | None = _flag(
        None,
        "Tokens of the KV pool that may be pinned, by Engine.pin and by marks in prompts; no "
        "request may need them. Default: a quarter, or what the longest request leaves.",
    )
    schedule_policy: SchedulePolicy = _flag(
        "lpm",
        "Who is admitted first: longest cached prefix, first come, most shared branch, longest "
        "output, fewest tokens to compute, by lot, or highest priority.",
        get_args(SchedulePolicy),
    )
    schedule_seed: int = _flag(0, "Seed of --schedule-policy random.")
    max_wait_admissions: int = _flag(
        1_000,
        "Younger requests of its priority and tenant that may be admitted before a waiting one.",
    )
    priority_scheduling_preemption_threshold: int = _flag(
        10,
        "With --schedule-policy priority, a request takes the place of a running one whose "
        "priority is lower by at least this.",
    )
    schedule_conservativeness: float = _flag(
        1.0, "More reserves more of the pool for running requests; 0 reserves nothing."
    )
    chunked_prefill_size: int = _flag(
        2048, "Token budget of a step; a longer prompt is computed in chunks between others."
    )
    max_running_requests: int = _flag(
        256, "Requests that run at the same time; never more than --chunked-prefill-size."
    )
    disable_jump_forward: bool = _flag(
        False, "Ask the model for every token of an answer, those that its grammar forces too."
    )
    max_queued_requests: int = _flag(10_000, "Requests that wait or run; more are refused.")

    def __post_init__(self) -> None:
        for name, low in (
            ("chunked_prefill_size", 1),
            ("max_running_requests", 1),
            ("max_queued_requests", 1),
            ("max_wait_admissions", 1),
            ("priority_scheduling_preemption_threshold", 1),
            ("schedule_seed", 0),
        ):
            _at_least(name, getattr(self, name), low)
        if self.threads is not None:
            _at_least("threads", self.threads, 1)
            if self.threads > _MOST_THREADS:
                raise ConfigError(f"--threads is at most {_MOST_THREADS}, got {self.threads}")
        for name in ("kv_tokens", "context_length"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 2)
        if self.max_pinned_tokens is not None:
            _at_least("max_pinned_tokens", self.max_pinned_tokens, 0)
        check_page_size(self.page_size)
        if self.disable_radix_cache and self.max_pinned_tokens:
            raise ConfigError("--max-pinned-tokens has no use with --disable-radix-cache")
        for item in fields(self):
            choices = item.metadata["choices"]
            value = getattr(self, item.name)
            if choices and value not in choices:
                raise ConfigError(f"{_name(item.name)} is one of {choices}, got {value!r}")
        if not 0.0 <= self.schedule_conservativeness <= 10.0:
            raise ConfigError(
                "--schedule-conservativeness is a number from 0 to 10, "
                f"got {self.schedule_conservativeness!r}"
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
    whole = isinstance(page_size, int) and not isinstance(page_size, bool)
    if not whole or page_size < 1 or page_size & (page_size - 1):
        raise ConfigError(f"--page-size must be a power of two, got {page_size!r}")


def _at_least(name: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{_name(name)} is an integer of at least {low}, got {value!r}")


def _name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")
