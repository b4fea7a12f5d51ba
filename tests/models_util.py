"""Models that tests need and users don't."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def pad_heads(folder: Path, out: Path, num_heads: int, num_kv_heads: int) -> None:
    """Writes the same function with more attention heads, so that it divides by more ranks.

    The added heads are zero. Query heads per KV head must stay the same, and the model must fit
    in one safetensors file.
    """
    config = json.loads((folder / "config.json").read_text())
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    if num_heads != group * num_kv_heads or num_heads < config["num_attention_heads"]:
        raise ValueError(f"{num_heads}/{num_kv_heads} heads: {group} per KV head, and no fewer")
    sizes = {
        "q_proj": num_heads * config["head_dim"],
        "k_proj": num_kv_heads * config["head_dim"],
        "v_proj": num_kv_heads * config["head_dim"],
        "o_proj": num_heads * config["head_dim"],
    }
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
    config |= {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}
    (out / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    padded = {name: _pad(name, weight, sizes) for name, weight in weights.items()}
    save_file(padded, out / "model.safetensors", metadata={"format": "pt"})


def _pad(name: str, weight: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
    size = sizes.get(name.split(".")[-2])
    if size is None:
        return weight
    dim = 1 if ".o_proj." in name else 0
    shape = list(weight.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([weight, weight.new_zeros(shape)], dim)
