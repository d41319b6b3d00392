"""A valid request of each kind for the models of `small_models`: paths with bodies."""

from __future__ import annotations

from typing import Any

MODELS = ("classify", "regress", "choose", "tag", "answer", "pretrained", "sentences")

VALID: list[tuple[str, dict[str, Any]]] = [
    ("/v1/models/classify/predict", {"inputs": ["a good film", {"sentence1": "a cat", "sentence2": "a dog"}]}),
    ("/v1/models/choose/predict", {"inputs": [{"prompt": "the cat", "choices": ["sat", "was"]}], "truncate": True}),
    ("/v1/models/answer/predict", {"inputs": [{"question": "who?", "context": "john sat in paris"}]}),
    ("/v1/models/tag/predict", {"inputs": ["john sat in paris. it was good."], "by": "sentence"}),
    ("/v1/models/pretrained/fill-mask", {"text": "a [MASK] film", "top_k": 2}),
    ("/v1/models/pretrained/next", {"text": "a film", "top_k": 2, "backward": True}),
    ("/v1/models/sentences/embed", {"inputs": ["a cat", "我喜欢看电影"], "pooling": "max"}),
    ("/v1/models/classify/tokenize", {"text": "a cat", "pair": None, "embeddings": True}),
    ("/v1/models/classify/attention", {"text": "a cat", "layer": 1, "head": 2, "top_k": 5}),
    ("/v1/embeddings", {"model": "sentences", "input": ["a cat"], "encoding_format": "base64"}),
    ("/v1/embeddings/projection", {"model": "sentences", "inputs": ["a", "b", "c"], "query": "d"}),
    ("/embed", {"inputs": ["a cat", [2, 5, 3]], "truncate": True, "normalize": False}),
    ("/embed_all", {"inputs": "a cat", "truncation_direction": "Left"}),
    ("/predict", {"inputs": [["a good film"], ["a cat", "a dog"]], "raw_scores": True}),
    ("/rerank", {"query": "a cat", "texts": ["a dog", "a film"], "return_text": True}),
    ("/similarity", {"inputs": {"source_sentence": "a cat", "sentences": ["a dog"]}, "parameters": None}),
    ("/tokenize", {"inputs": ["a cat", "a dog"], "add_special_tokens": False}),
]
