"""adapter_config.json as PEFT writes it for LoRA (Hu et al., 2021), and what of it is served.

Source: peft's LoraConfig, and how it matches names (tuners_utils.check_target_module_exists,
other.get_pattern_key).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.core.files import read_json_object
from radixlm.models.config_fields import Fields, Flag, Number, Size, read, supported, unsupported

CONFIG = "adapter_config.json"
# Who made it and how it was trained.
_SAYS_NOTHING = frozenset(
    {
        *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
        *("inference_mode", "lora_dropout", "megatron_core", "qalora_group_size", "layers_pattern"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"),
    }
)
# Others change the model's own weights before training.
_INITIAL = (True, False, "true", "false", "gaussian", "eva", "orthogonal")
_ALL = "all-linear"
_N = TypeVar("_N", int, float)
_Names = Annotated[list[str] | str, supported("names of modules, or a pattern")]


class AdapterConfig(Fields):
    """What is served: low-rank products beside linear ones. Any other field that asks for something
    is refused by its name.
    """

    peft_type: Annotated[Literal["LORA"], supported("LORA")]
    r: Size
    lora_alpha: Number = 8
    use_rslora: Flag = False
    target_modules: _Names
    exclude_modules: _Names = Field([])
    rank_pattern: Annotated[dict[str, Size], supported("ranks by pattern")] = Field({})
    alpha_pattern: Annotated[dict[str, Number], supported("alphas by pattern")] = Field({})
    bias: Annotated[Literal["none"], supported("none")] = "none"
    init_lora_weights: Annotated[
        Any, supported(", ".join(str(value).lower() for value in _INITIAL))
    ] = True

    @classmethod
    def of(cls, folder: Path) -> AdapterConfig:
        """Raises CheckpointError, and UnsupportedModelError that names file, field and value."""
        path = folder / CONFIG
        if not path.is_file():
            raise CheckpointError(f"{folder} has no {CONFIG}; is it the folder of a PEFT adapter?")
        values = read_json_object(path)
        try:
            return _served(read(cls, values))
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{path}: {error}") from None

    def targets(self, module: str) -> bool:
        """Whether it changes a product of this name, the model's head left out."""
        if _names(self.exclude_modules, module):
            return False
        return self.target_modules == _ALL or _names(self.target_modules, module)

    def rank_of(self, module: str) -> int:
        return _by_pattern(self.rank_pattern, module, self.r)

    def scale_of(self, module: str) -> float:
        """What the low-rank product is multiplied by."""
        alpha, rank = _by_pattern(self.alpha_pattern, module, self.lora_alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def _names(given: Iterable[str] | str, module: str) -> bool:
    if isinstance(given, str):
        return re.fullmatch(given, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in given)


def _by_pattern(patterns: Mapping[str, _N], module: str, usual: _N) -> _N:
    """Of the first pattern that the module's name, or an end of it, matches."""
    matching = (key for key in patterns if re.match(rf"(.*\.)?({key})$", module))
    return patterns.get(next(matching, module), usual)


def _served(config: AdapterConfig) -> AdapterConfig:
    start = config.init_lora_weights
    if not any(start is value or (isinstance(start, str) and start == value) for value in _INITIAL):
        changed = "those that leave the model's own weights as they are: "
        raise unsupported("init_lora_weights", start, changed + ", ".join(map(str, _INITIAL)))
    for name, value in (config.model_extra or {}).items():
        if value and name not in _SAYS_NOTHING:
            raise unsupported(name, value, "false, null or nothing")
    patterns = [*config.rank_pattern, *config.alpha_pattern]
    for given in (config.target_modules, config.exclude_modules):
        if isinstance(given, str) and given != _ALL:
            patterns.append(given)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UnsupportedModelError(f"the pattern {pattern!r:.200} is none: {error}") from None
    return config
