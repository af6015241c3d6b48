"""The architectures, by the config's `model_type`: a class for each, a file for those of a kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from radixlm.models.families.apertus import Apertus
from radixlm.models.families.arcee import Arcee
from radixlm.models.families.bailing_hybrid import BailingHybrid
from radixlm.models.families.cohere import Cohere, Cohere2
from radixlm.models.families.deepseek import DeepseekV2, DeepseekV3
from radixlm.models.families.ernie import Ernie45, Ernie45Moe, PaddleOCR
from radixlm.models.families.exaone import Exaone4
from radixlm.models.families.gemma import Gemma, Gemma2, Gemma3
from radixlm.models.families.gemma4 import Gemma4, Gemma4Unified
from radixlm.models.families.glm import Glm, Glm4, Glm4V, GlmOcr
from radixlm.models.families.glm_moe import Glm4Moe, Glm4MoeLite
from radixlm.models.families.gpt_oss import GptOss
from radixlm.models.families.granite import Granite, GraniteMoe
from radixlm.models.families.hunyuan import HunYuanDenseV1, HunYuanMoEV1
from radixlm.models.families.indexed import AXK2, DeepseekV32, GlmMoeDsa
from radixlm.models.families.internlm import InternLM3
from radixlm.models.families.jamba import Jamba
from radixlm.models.families.kimi_linear import KimiLinear
from radixlm.models.families.lfm import Lfm2, Lfm2Moe
from radixlm.models.families.lfm3 import Lfm3
from radixlm.models.families.llama import Llama, Mistral
from radixlm.models.families.llama4 import Llama4
from radixlm.models.families.mamba import FalconMamba, Mamba2Alone, MambaAlone
from radixlm.models.families.mamba_hybrids import Bamba, FalconH1, GraniteHybrid
from radixlm.models.families.mimo import MiMoV2Flash
from radixlm.models.families.minimax import MiniMaxM2, MiniMaxText
from radixlm.models.families.mistral import Ministral3, Mistral4
from radixlm.models.families.mixtral import Mixtral
from radixlm.models.families.nemotron import Nemotron
from radixlm.models.families.nemotron_h import NemotronH
from radixlm.models.families.olmo import Olmo2, Olmo3, Olmoe
from radixlm.models.families.olmo_hybrid import OlmoHybrid
from radixlm.models.families.phi import Phi3
from radixlm.models.families.qwen import Qwen2, Qwen3
from radixlm.models.families.qwen_moe import Qwen2Moe, Qwen3Moe, Qwen3VLMoe
from radixlm.models.families.qwen_next import Qwen3Next, Qwen35, Qwen35Moe
from radixlm.models.families.recurrent_gemma import RecurrentGemma
from radixlm.models.families.seed import SeedOss
from radixlm.models.families.smollm import SmolLM3
from radixlm.models.families.stablelm import StableLM
from radixlm.models.families.starcoder import Starcoder2
from radixlm.models.families.zamba import Zamba
from radixlm.models.families.zamba2 import Zamba2
from radixlm.models.hf_config import HFConfig

# Texts of models of more than text, like those of families of text alone.
TEXTS: Mapping[str, type[HFConfig]] = MappingProxyType(
    {
        "qwen2_vl_text": Qwen2,
        "qwen2_5_vl_text": Qwen2,
        "qwen2_5_omni_text": Qwen2,
        "qwen3_vl_text": Qwen3,
        "qwen3_vl_moe_text": Qwen3VLMoe,
        "qwen3_omni_moe_text": Qwen3Moe,
        "glm4v_text": Glm4V,
        "glm_ocr_text": GlmOcr,
        "glm4v_moe_text": Glm4Moe,
        "hunyuan_vl_text": HunYuanDenseV1,
        "paddleocr_vl_text": PaddleOCR,
        "granite4_vision_text": Granite,
        "granite_docling_text": Granite,
        "emu3_text_model": Llama,
    }
)
ARCHITECTURES: Mapping[str, type[HFConfig]] = MappingProxyType(
    {
        "llama": Llama,
        "mistral": Mistral,
        "qwen2": Qwen2,
        "qwen3": Qwen3,
        "phi3": Phi3,
        "granite": Granite,
        "olmo2": Olmo2,
        "smollm3": SmolLM3,
        "gemma": Gemma,
        "stablelm": StableLM,
        "starcoder2": Starcoder2,
        "glm": Glm,
        "glm4": Glm4,
        "cohere": Cohere,
        "nemotron": Nemotron,
        "internlm3": InternLM3,
        "mixtral": Mixtral,
        "qwen2_moe": Qwen2Moe,
        "qwen3_moe": Qwen3Moe,
        "olmoe": Olmoe,
        "granitemoe": GraniteMoe,
        "gemma2": Gemma2,
        "gemma3_text": Gemma3,
        "cohere2": Cohere2,
        "olmo3": Olmo3,
        "gpt_oss": GptOss,
        "deepseek_v2": DeepseekV2,
        "deepseek_v3": DeepseekV3,
        "kimi_k2": DeepseekV3,
        "glm4_moe": Glm4Moe,
        "glm4_moe_lite": Glm4MoeLite,
        "minimax_m2": MiniMaxM2,
        "ministral3": Ministral3,
        "mistral4": Mistral4,
        "seed_oss": SeedOss,
        "exaone4": Exaone4,
        "ernie4_5": Ernie45,
        "ernie4_5_moe": Ernie45Moe,
        "hunyuan_v1_dense": HunYuanDenseV1,
        "hunyuan_v1_moe": HunYuanMoEV1,
        "apertus": Apertus,
        "arcee": Arcee,
        "llama4_text": Llama4,
        "gemma4_text": Gemma4,
        "qwen3_next": Qwen3Next,
        "qwen3_5_text": Qwen35,
        "qwen3_5_moe_text": Qwen35Moe,
        "gemma4_unified_text": Gemma4Unified,
        "mimo_v2_flash": MiMoV2Flash,
        "lfm2": Lfm2,
        "lfm2_moe": Lfm2Moe,
        "lfm3": Lfm3,
        "bamba": Bamba,
        "granitemoehybrid": GraniteHybrid,
        "falcon_h1": FalconH1,
        "nemotron_h": NemotronH,
        "mamba2": Mamba2Alone,
        "jamba": Jamba,
        "mamba": MambaAlone,
        "falcon_mamba": FalconMamba,
        "olmo_hybrid": OlmoHybrid,
        "zamba": Zamba,
        "zamba2": Zamba2,
        "kimi_linear": KimiLinear,
        "minimax": MiniMaxText,
        "bailing_hybrid": BailingHybrid,
        "recurrent_gemma": RecurrentGemma,
        "deepseek_v32": DeepseekV32,
        "glm_moe_dsa": GlmMoeDsa,
        "axk2": AXK2,
        **TEXTS,
    }
)
