"""Answers by transformers' own `generate`, plain or assisted: what others' speculation is held to.

Assisted generation: Gante, "Assisted Generation", Hugging Face 2023; prompt lookup is Saxena's.
"""

import time
from typing import Any, Literal, NamedTuple

import torch

from specray.models.causal_lm import load_causal_lm
from specray.models.tokenizers import load_tokenizer

Method = Literal["plain", "assisted", "prompt_lookup"]


class Answer(NamedTuple):
    """What an answer took, with its prefill."""

    num_tokens: int
    duration_s: float


class Generator:
    """A target, and for assisted generation a draft, on the CPU in float32 or the first GPU."""

    def __init__(self, method: Method, target: str, draft: str | None) -> None:
        """Loads the models.

        Args:
            method: how to speculate.
            target: its folder or hub id.
            draft: likewise, of the same tokenizer; for assisted generation only.

        Raises:
            InvalidConfigError: a model can't be loaded.
        """
        self._method = method
        self._model = load_causal_lm(target)
        self._tokenizer = load_tokenizer(target)
        self._draft = load_causal_lm(draft) if method == "assisted" and draft is not None else None

    def answer(
        self, prompt: str, temperature: float, max_tokens: int, seed: int, depth: int | None
    ) -> Answer:
        """Answers a user's message.

        Args:
            prompt: the message.
            temperature: 0 is greedy.
            max_tokens: if the model does not end the answer before.
            seed: of what is drawn.
            depth: most tokens drafted at once. An assistant may stop earlier, when it is unsure.
        """
        torch.manual_seed(seed)
        started_s = time.perf_counter()
        chat = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        inputs = self._tokenizer(text, add_special_tokens=False, return_tensors="pt")
        inputs = inputs.to(self._model.device)
        written = self._model.generate(
            **inputs,
            max_new_tokens=max_tokens,
            pad_token_id=self._tokenizer.eos_token_id,
            **_sampling(temperature),
            **self._speculation(depth),
        )
        duration_s = time.perf_counter() - started_s
        return Answer(written.shape[1] - inputs.input_ids.shape[1], duration_s)

    def _speculation(self, depth: int | None) -> dict[str, Any]:
        if self._method == "prompt_lookup":
            return {"prompt_lookup_num_tokens": depth}
        if self._draft is None:
            return {}
        self._draft.generation_config.num_assistant_tokens = depth
        self._draft.generation_config.num_assistant_tokens_schedule = "constant"
        return {"assistant_model": self._draft}


def _sampling(temperature: float) -> dict[str, Any]:
    if temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
