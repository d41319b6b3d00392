"""What may be asked over HTTP: bytes of JSON in, checked bodies out; and the shapes of the answers, for the reference.

Numbers of inputs and lengths of texts are not bounded here but by the server's limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bertworks.inference.generate import GenerationConfig, make_generation_config

MAX_TOP = 100
MAX_MASKS = 16
MAX_LINKS = 20_000
MAX_NEW_TOKENS = 512


# The id of a piece.
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Body(BaseModel):
    """A body with nothing in it that is not known: a misspelt field is an error, not a default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def texts(self) -> Iterator[str]:
        """All texts in it, to be held against the limits."""
        for name in type(self).model_fields:
            yield from _texts_in(getattr(self, name))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts_in(one)
    elif isinstance(value, Body):
        yield from value.texts()


class TextInput(Body):
    text: str


class PairInput(Body):
    sentence1: str
    sentence2: str


class PassageInput(Body):
    question: str
    context: str


class ChoiceInput(Body):
    prompt: str
    choices: list[str]


Input = str | TextInput | PairInput | PassageInput | ChoiceInput


class PredictBody(Body):
    """Texts, or what else the task of the model reads."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": ["A charming film.", {"text": "Dull."}]},
                {"inputs": [{"sentence1": "It rains.", "sentence2": "The sun shines."}]},
                {"inputs": [{"question": "Who wrote it?", "context": "It was written by Lu Xun in 1921."}]},
                {"inputs": [{"prompt": "She opened the door and", "choices": ["walked in.", "ate the moon."]}]},
                {"inputs": ["Angela Merkel visited Paris. It rained."], "by": "sentence"},
            ]
        }
    )

    inputs: list[Input]
    truncate: bool = Field(False, description="Cut long texts instead of reading them in windows.")
    by: Literal["text", "sentence"] = Field("text", description="Predict whole texts, or each of their sentences.")


class FillMaskBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Paris is the [MASK] of France.", "top": 5}]})

    text: str = Field(description="A text with [MASK] where a piece is missing.")
    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = 5


class GenerateBody(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"text": "The river"}, {"text": "The river", "pieces": 20, "nucleus": 0.9, "seed": 3}]
        }
    )

    text: str = Field(description="How the text begins; may be empty.")
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] = 40
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = Field(
        None, description="Draw among so many; 0: among all. null: 1 (the likeliest) if nothing else is asked, else 0."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    temperature: Annotated[float, Field(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def generation_config(self) -> GenerationConfig:
        return make_generation_config(self.max_new_tokens, self.top_k, self.top_p, self.temperature, self.seed)


class NextBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Paris is the", "top": 5, "backward": False}]})

    text: str
    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = 5
    backward: bool = Field(False, description="The words before the text; for models that fill blanks.")


class EmbedBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["A cat sleeps.", "猫在睡觉。"]}]})

    inputs: list[str]
    pooling: Literal["mean", "first", "max"] | None = Field(None, description="null: as the model's folder says.")
    truncate: bool = False


class TokenizeBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "playing chess", "embeddings": True}]})

    text: str
    pair: str | None = None
    embeddings: bool = Field(False, description="Tell the three embeddings of each place too.")


class AttentionBody(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "The cat sat because it was tired.", "layer": 0, "head": 0}]}
    )

    text: str
    pair: str | None = None
    num_links: Annotated[int, Field(ge=1, le=MAX_LINKS)] = 200
    layer: Annotated[int, Field(ge=0)] | None = None
    head: Annotated[int, Field(ge=0)] | None = None


class ExplainBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "A charming film.", "target": None}]})

    input: Input
    target: str | None = Field(None, description="What to explain instead of the prediction, such as a class.")


class MapBody(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "minilm", "inputs": ["cat", "dog", "car"], "query": "animal"}]}
    )

    model: str
    inputs: list[str]
    query: str | None = None


class SearchBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "how to read a file", "top": 5}]})

    query: str
    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = 10


class EmbeddingsBody(BaseModel):
    """OpenAI's body: fields of theirs that mean nothing here (user) are let pass."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"model": "minilm", "input": ["A cat sleeps."]}]}
    )

    model: str
    input: str | list[str] | list[TokenId] | list[list[TokenId]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="Only the model's own width.")

    def inputs(self) -> list[str | list[int]]:
        if isinstance(self.input, str):
            return [self.input]
        if self.input and isinstance(self.input[0], int):
            return [[one for one in self.input if isinstance(one, int)]]
        return [one for one in self.input if not isinstance(one, int)]

    def texts(self) -> Iterator[str]:
        return (one for one in self.inputs() if isinstance(one, str))


class UsageResponse(BaseModel):
    num_tokens: int
    num_windows: int
    num_truncated: int


class PredictResponse(BaseModel):
    predictions: list[dict[str, Any]]
    usage: UsageResponse


class FillMaskResponse(BaseModel):
    text: str
    mask_candidates: list[list[dict[str, Any]]]
    sequences: list[dict[str, Any]]


class GenerateResponse(BaseModel):
    text: str
    continuation: str
    tokens: list[str]
    probabilities: list[float]
    finish_reason: Literal["eos", "max_new_tokens", "max_length"]


class WordCandidate(BaseModel):
    word: str
    tokens: list[str]
    probability: float


class NextResponse(BaseModel):
    words: list[WordCandidate]


class EmbedResponse(BaseModel):
    vectors: list[list[float]]
    width: int
    usage: UsageResponse


class TokenizeResponse(BaseModel):
    tokens: list[str]
    input_ids: list[int]
    token_type_ids: list[int]
    position_ids: list[int]
    offsets: list[list[int] | None]
    texts: list[str]
    norms: dict[str, list[float]] | None = None
    sample: dict[str, list[list[float]]] | None = None


class AttentionResponse(BaseModel):
    tokens: list[str]
    token_type_ids: list[int]
    num_layers: int
    num_heads: int
    links: list[list[float]] = Field(description="Each [layer, head, from, to, weight], the strongest first.")
    num_truncated: int


class ExplainResponse(BaseModel):
    target: str
    output: float
    baseline_output: float
    texts: list[dict[str, Any]]
    context_weight: float
    convergence_delta: float
    steps: int
    num_truncated: int


class MapResponse(BaseModel):
    points: list[list[float]]
    scores: list[float] | None


class PassageHit(BaseModel):
    text: str
    score: float
    document: str
    sentence_index: int


class SearchResponse(BaseModel):
    results: list[PassageHit]


class EmbeddingsResponse(BaseModel):
    object: str
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


class ModelResponse(BaseModel):
    name: str
    task: str | None
    capabilities: list[str]
    labels: list[str] | None
    max_length: int
    languages: list[str] | None
    description: str


class ModelsResponse(BaseModel):
    models: list[ModelResponse]


class RunsResponse(BaseModel):
    runs: list[dict[str, Any]]


class RunResponse(BaseModel):
    name: str
    kind: str
    state: str
    step: int
    recipe: dict[str, Any]
    records: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    seconds_left: float | None


class ErrorDetail(BaseModel):
    type: str
    message: str


class ErrorResponse(BaseModel):
    error: ErrorDetail
