"""Flags of other engines: what ours is called, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_POOL = "--kv-tokens sets how many tokens the KV pool holds; by default what free memory allows"
_DEVICES = "a model runs in one process on one device, which --device names"
_ADAPTERS = "LoRA adapters are not supported yet; merge one into its model and serve that"
_QUANTIZED = "quantized weights are not supported yet; --dtype is float32 or bfloat16"
_SPECULATION = "speculative decoding is not supported yet"
_FETCHING = "models are not fetched: `hf download OWNER/NAME --local-dir FOLDER`, then give FOLDER"
_GENERATES = "only models that generate text are served"
_ALWAYS = "there is nothing to set: it is always on"
_NOTHING = "there is nothing to set"
_ELSEWHERE = "of `radixlm chat` and `radixlm generate` is ours; served requests say it themselves"

# By hint: flags of vLLM, SGLang and llama.cpp that are not ours.
_FLAGS: Mapping[str, str] = {
    "--context-length is ours": "--max-model-len -c --ctx-size --max-seq-len",
    "--max-running-requests is ours": "--max-num-seqs --parallel -np --max-batch-size",
    "--chunked-prefill-size is ours": (
        "--max-num-batched-tokens --max-prefill-tokens -b --batch-size -ub --ubatch-size "
        "--long-prefill-token-threshold"
    ),
    _POOL: (
        "--gpu-memory-utilization --mem-fraction-static --max-total-tokens --kv-cache-memory "
        "--kv-cache-memory-bytes --num-gpu-blocks-override --swap-space --cpu-offload-gb "
        "--cache-ram"
    ),
    "--page-size is ours": "--block-size",
    "MODEL is the first argument, or --model-path": "-m",
    "--served-model-name is ours": "-a --alias",
    "--tokenizer is ours": "--tokenizer-path",
    "--chat-template is ours": "--chat-template-file",
    "--disable-radix-cache is ours": (
        "--no-enable-prefix-caching --disable-prefix-caching --no-cache-prompt"
    ),
    "--schedule-policy is ours": "--scheduling-policy",
    "--disable-access-log is ours": "--disable-log-requests --disable-uvicorn-access-log",
    "--max-queued-requests is ours": "--max-waiting-requests",
    "--kv-events-config is ours": "--kv-events",
    "--sampling-defaults is ours": "--generation-config",
    "--request-timeout is ours": "--timeout -to",
    "--root-path is ours": "--api-prefix --fastapi-root-path",
    "--device is ours": "-dev -mg --main-gpu --base-gpu-id",
    "all layers are on one device, which --device names; there is nothing to divide": (
        "-ngl --gpu-layers --n-gpu-layers -cmoe --cpu-moe -ncmoe --n-cpu-moe -ot --override-tensor"
    ),
    "--threads is ours": "-t -tb --threads-batch",
    "--ssl-certfile is ours": "--ssl-cert-file",
    "--ssl-keyfile is ours": "--ssl-key-file",
    "--system of `radixlm chat` is ours; a request has it among its messages": (
        "-sys --system-prompt"
    ),
    "prompts are arguments of `radixlm generate`, without a flag": "-p --prompt -f --file",
    "`radixlm chat` is for conversations": "-i --interactive -cnv --conversation",
    f"--max-tokens {_ELSEWHERE}": "-n --predict --n-predict --max-new-tokens",
    f"--temperature {_ELSEWHERE}": "--temp",
    f"--repetition-penalty {_ELSEWHERE}": "--repeat-penalty",
    "positions are scaled as the model's config.json says": (
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
        "--hf-overrides --override-kv"
    ),
    "prompt and answer must fit the context, which --context-length sets; nothing is cut off": (
        "--keep --context-shift --no-context-shift"
    ),
    "the cache lives in memory, and what it shares are prefixes": "--slot-save-path --cache-reuse",
    "--api-key is ours; with --config it can stand in a file": "--api-key-file",
    _DEVICES: (
        "--tensor-parallel-size -tp --tp --tp-size --pipeline-parallel-size -pp --pp-size "
        "--data-parallel-size -dp --dp --dp-size --enable-expert-parallel --ep-size --nnodes "
        "--distributed-executor-backend --dist-init-addr -sm --split-mode -ts --tensor-split"
    ),
    _ADAPTERS: (
        "--enable-lora --lora --lora-scaled --lora-modules --lora-paths --max-loras "
        "--max-lora-rank --max-loras-per-batch"
    ),
    _QUANTIZED: (
        "--quantization -q --load-format --kv-cache-dtype --cache-type-k -ctk --cache-type-v -ctv "
        "--torchao-config"
    ),
    _SPECULATION: (
        "--speculative-config --speculative-algorithm --speculative-draft-model-path "
        "--model-draft -md --draft --draft-max --num-speculative-tokens"
    ),
    _FETCHING: (
        "-hf -hfr --hf-repo --hf-file --hf-token --revision --download-dir --model-url -mu"
    ),
    _GENERATES: "--task --runner --convert --is-embedding --embedding --embeddings --rerank "
    "--reranking --pooling --mmproj --limit-mm-per-prompt",
    "code that comes with a checkpoint is never run, and no model here needs any": (
        "--trust-remote-code"
    ),
    "calls of tools are always read; --tool-call-parser says how": "--enable-auto-tool-choice",
    "the chat template is always used": "--jinja",
    "thoughts are always told apart; --reasoning-parser says how": (
        "--enable-reasoning --reasoning-format"
    ),
    _ALWAYS: (
        "--enable-prefix-caching --enable-chunked-prefill --cont-batching -cb --flash-attn -fa "
        "--enable-metrics --metrics --enable-cache-report --enable-prompt-tokens-details --slots "
        "--cache-prompt --enable-server-load-tracking --enable-request-id-headers"
    ),
    _NOTHING: (
        "--enforce-eager --disable-cuda-graph --cuda-graph-max-bs --attention-backend "
        "--sampling-backend --grammar-backend --guided-decoding-backend "
        "--structured-outputs-config --mlock --no-mmap --enable-torch-compile "
        "--compilation-config -O --async-scheduling --skip-server-warmup --log-level "
        "--uvicorn-log-level -v --verbose -lv --verbosity --log-verbosity --log-disable --numa "
        "--prio --poll -C --cpu-mask --check-tensors --threads-http --no-warmup --no-webui"
    ),
    f"--seed {_ELSEWHERE}": "--random-seed -s",
}
_HINTS: Mapping[str, str] = MappingProxyType(
    {flag: hint for hint, flags in _FLAGS.items() for flag in flags.split()}
)


def hint_for(flag: str) -> str | None:
    """What to do instead of another engine's flag; None for one that none of them has.

    >>> hint_for("--max-model-len")
    '--context-length is ours'
    """
    return _HINTS.get(flag)


def hinted() -> Mapping[str, str]:
    """Every flag that has a hint."""
    return _HINTS
