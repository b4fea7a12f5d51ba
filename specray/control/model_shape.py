"""From a model's size to what its forward pass moves and computes."""

from specray.control.roofline import ModelShape, Window
from specray.models.size import ModelSize


def shape_of(size: ModelSize, dtype: str = "auto", cache_dtype: str = "auto") -> ModelShape:
    """What a model's step moves and computes.

    Args:
        size: The model's.
        dtype: In which it is served; `auto` is the checkpoint's.
        cache_dtype: Of its keys and values; `auto` likewise.
    """
    served = size.dtype if dtype == "auto" else dtype
    experts = size.experts
    return ModelShape(
        num_active_parameters=size.num_active_parameters,
        weight_bytes=size.weight_bytes(dtype),
        kv_bytes_per_token=sum(
            size.kv_bytes(layers, cache_dtype) for layers in size.kv_layers if layers.window is None
        ),
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        dtype=size.compute_dtype(dtype),
        activation_bytes=4.0 if served == "float32" else 2.0,
        attention_width=size.attention_width,
        expert_bytes=size.expert_bytes(dtype),
        idle_share=1 - experts.per_token / experts.count if experts else 0.0,
        windows=tuple(
            Window(layers.num_layers, layers.window, size.kv_bytes(layers, cache_dtype))
            for layers in size.kv_layers
            if layers.window is not None
        ),
    )
