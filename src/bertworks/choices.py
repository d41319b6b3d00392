"""Names that options and recipes accept, importable without torch; a test compares them with the tables they key."""

from __future__ import annotations

DEVICES = ("auto", "cpu", "cuda", "mps", "xla")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
ENGINES = ("torch", "onnx", "openvino")
LOG_FORMATS = ("text", "json")
EXPORT_TARGETS = ("onnx", "openvino", "safetensors-fp16", "int8")
FEATURE_STRATEGIES = (
    "embeddings",
    "second-to-last",
    "last",
    "sum-last-four",
    "concat-last-four",
    "sum-all",
    "sum-with-embeddings",
)
# The names of sentence-transformers.
POOLINGS = ("mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean")
# Other names that are read: those that bertworks wrote before, and TEI's.
POOLING_ALIASES = {"first": "cls", "mean_sqrt_len": "mean_sqrt_len_tokens", "last_token": "lasttoken"}
VOCABULARY_KINDS = ("wordpiece", "bpe", "byte-bpe", "unigram", "words", "jieba-words")
WORD_VECTOR_KINDS = ("glove", "skip-gram", "cbow")
COMPARE_RECIPES = ("family", "ablations", "masking", "sizes", "convergence")
WORD_VECTOR_FORMATS = ("folder", "word2vec", "word2vec-binary", "glove")
WORD_CONTEXTS = ("documents", "sentences")
TRACKERS = ("wandb", "mlflow")
TASKS = ("classify", "regress", "choose", "tag", "answer", "translate")
