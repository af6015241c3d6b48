"""adapter_config.json as PEFT writes it for LoRA (Hu et al., 2021), and what of it is served.

Source: peft's LoraConfig, and how it matches names (tuners_utils.check_target_module_exists,
other.get_pattern_key).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field

from radixlm.core.errors import UnsupportedModelError
from radixlm.formats.files import parsed_object
from radixlm.models.config_fields import Fields, Flag, Number, Size, read, supported, unsupported
from radixlm.models.module_patterns import ModulePattern, matching

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


class ProductSize(NamedTuple):
    """scale: what the low-rank product is multiplied by."""

    rank: int
    scale: float


class AdapterConfig(Fields):
    """An adapter's config as far as it is served: low-rank products beside linear ones. Any other
    field that asks for something is refused by its name.
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
    def of(cls, path: Path, content: bytes) -> AdapterConfig:
        """content: of the file at `path`. Raises CheckpointError, and UnsupportedModelError that
        names file, field and value.
        """
        values = parsed_object(path, content)
        try:
            return _served(read(cls, values))
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{path}: {error}") from None

    def products(self, modules: Sequence[str]) -> dict[str, ProductSize]:
        """The modules of these, without the model's head, that it adds a product to. Raises
        UnsupportedModelError for patterns that are wrong, or take too long.
        """
        named = (self.target_modules, self.exclude_modules)
        whole = [ModulePattern(each, whole=True) for each in named if isinstance(each, str)]
        sized = (self.rank_pattern, self.alpha_pattern)
        ends = [ModulePattern(each, whole=False) for field in sized for each in field]
        patterns = [*whole, *ends]
        found = dict(zip(patterns, matching(patterns, modules), strict=True))

        def names(given: list[str] | str, module: str) -> bool:
            if isinstance(given, str):
                return module in found[ModulePattern(given, whole=True)]
            return any(module == name or module.endswith(f".{name}") for name in given)

        def sized_by(field: Mapping[str, _N], module: str, usual: _N) -> _N:
            """The rank or scale of the first pattern that matches."""
            matched = (key for key in field if module in found[ModulePattern(key, whole=False)])
            return field.get(next(matched, module), usual)

        sizes = {}
        for module in modules:
            targeted = self.target_modules == _ALL or names(self.target_modules, module)
            if not targeted or names(self.exclude_modules, module):
                continue
            rank = sized_by(self.rank_pattern, module, self.r)
            alpha = sized_by(self.alpha_pattern, module, self.lora_alpha)
            sizes[module] = ProductSize(rank, alpha / (rank**0.5 if self.use_rslora else rank))
        return sizes


def _served(config: AdapterConfig) -> AdapterConfig:
    start = config.init_lora_weights
    if not any(start is value or (isinstance(start, str) and start == value) for value in _INITIAL):
        changed = "those that leave the model's own weights as they are: "
        raise unsupported("init_lora_weights", start, changed + ", ".join(map(str, _INITIAL)))
    for name, value in (config.model_extra or {}).items():
        if value and name not in _SAYS_NOTHING:
            raise unsupported(name, value, "false, null or nothing")
    return config
