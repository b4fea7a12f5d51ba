"""The shapes of the models that our deployment files name, for when their hub can't be reached.

Each is what decides memory in that model's config.json, under the names used there.
"""

from typing import Any

_LLAMA_3 = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "head_dim": 128}
_LONG = {"max_position_embeddings": 131072, "dtype": "bfloat16"}
_OPT = {
    "model_type": "opt",
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "dtype": "float16",
}
_SMOLLM2 = {"model_type": "llama", "vocab_size": 49152, "tie_word_embeddings": True}
_405B = {
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
}
_QWEN = {"max_position_embeddings": 32768, "dtype": "bfloat16"}
_SMOLLM2_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}

KNOWN: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA_3
    | _LONG
    | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    # In FP8 are only the feed-forward layers, and not those of the first and the last layer (The
    # Llama 3 Herd of Models, arXiv 2407.21783, section 6.2).
    "meta-llama/Llama-3.1-405B-Instruct-FP8": _LLAMA_3
    | _LONG
    | _405B
    | {
        "quantization_config": {
            "quant_method": "fbgemm_fp8",
            "activation_scale_ub": 1200.0,
            "modules_to_not_convert": [
                "self_attn",
                "model.layers.0.mlp",
                "model.layers.125.mlp",
                "lm_head",
            ],
        }
    },
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_3
    | _LONG
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "meta-llama/Llama-3.2-3B-Instruct": _LLAMA_3
    | _LONG
    | {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "tie_word_embeddings": True,
    },
    "meta-llama/Llama-3.2-1B-Instruct": _LLAMA_3
    | _LONG
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "facebook/opt-6.7b": _OPT
    | {
        "hidden_size": 4096,
        "word_embed_proj_dim": 4096,
        "ffn_dim": 16384,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "facebook/opt-125m": _OPT
    | {
        "hidden_size": 768,
        "word_embed_proj_dim": 768,
        "ffn_dim": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "Qwen/Qwen2.5-72B-Instruct": _QWEN
    | {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN
    | {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head"],
        },
    },
    "Qwen/Qwen3-0.6B": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _SMOLLM2
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 8192,
        "dtype": "bfloat16",
    },
    "HuggingFaceTB/SmolLM2-135M-Instruct": _SMOLLM2
    | _SMOLLM2_135M
    | {"num_hidden_layers": 30, "dtype": "bfloat16"},
    "bundled:smollm2-135m-instruct": _SMOLLM2
    | _SMOLLM2_135M
    | {"num_hidden_layers": 30, "dtype": "float32"},
    "bundled:smollm2-135m-instruct-draft": _SMOLLM2
    | _SMOLLM2_135M
    | {"num_hidden_layers": 8, "dtype": "float32"},
}
