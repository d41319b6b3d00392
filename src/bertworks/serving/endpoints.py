"""The endpoints under /v1: validated bodies in, JSON responses out."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from bertworks.serving import schemas
from bertworks.serving.answers import (
    Vectors,
    Work,
    cosines,
    embed_work,
    explain_work,
    fill_mask_work,
    generate_work,
    next_work,
    predict_work,
    project_to_plane,
    unbatched_work,
    with_model_mask_token,
)
from bertworks.serving.errors import ERROR_TYPES, RequestError
from bertworks.serving.inspection import AttentionQuery, attention, embeddings, tokenize_text, truncate_encoding
from bertworks.serving.models import ServedModel
from bertworks.serving.routing import JsonRoute, json_response
from bertworks.serving.service import Service

# The error responses of every endpoint, for the reference.
_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorResponse, "description": ERROR_TYPES[status].replace("_", " ")}
    for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
}


class Endpoints:
    """One method per endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        """List the served models and their capabilities, compatible with OpenAI's API."""
        data = [served.to_dict() for served in self._service.models.values()]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request, name: str) -> Response:
        """Describe one model and its capabilities."""
        return json_response(self._model(request, name, "tokenize").to_dict())

    async def predict(self, request: Request, name: str, body: schemas.PredictBody) -> Response:
        """Predict with the task the model was fine-tuned for: classes, values, choices, entities, answers, …"""
        served = self._model(request, name, "predict")
        num_characters = self._service.check(len(body.inputs), body.texts())
        return json_response(
            await self._service.answer(
                lambda: predict_work(served, body.inputs, body.truncate, body.by), num_characters
            )
        )

    async def fill_mask(self, request: Request, name: str, body: schemas.FillMaskBody) -> Response:
        """Predict masked tokens: candidates for each mask, and the best sequences with all masks filled."""
        served = self._model(request, name, "fill-mask")
        num_characters = self._service.check(1, body.texts())
        mask = served.model.tokenizer.tokens[served.model.tokenizer.specials.mask]
        if with_model_mask_token(served, body.text).count(mask) > schemas.MAX_MASKS:
            raise RequestError(422, f"the text has more than {schemas.MAX_MASKS} masks; fill some of them first")
        return json_response(
            await self._service.answer(lambda: fill_mask_work(served, body.text, body.top_k), num_characters)
        )

    async def generate(self, request: Request, name: str, body: schemas.GenerateBody) -> Response:
        """Continue a text with a causal language model."""
        served = self._model(request, name, "generate")
        num_characters = self._service.check(1, body.texts())
        return json_response(
            await self._service.answer(
                lambda: generate_work(served, body.text, body.generation_config()), num_characters
            )
        )

    async def next(self, request: Request, name: str, body: schemas.NextBody) -> Response:
        """Predict the word after a text, or before it."""
        served = self._model(request, name, "next")
        num_characters = self._service.check(1, body.texts())
        return json_response(
            await self._service.answer(lambda: next_work(served, body.text, body.top_k, body.backward), num_characters)
        )

    async def embed(self, request: Request, name: str, body: schemas.EmbedBody) -> Response:
        """Embed texts."""
        served = self._model(request, name, "embed")
        num_characters = self._service.check(len(body.inputs), body.texts())

        def make_work() -> Work:
            pooling = served.pooling.with_kind(body.pooling) if body.pooling else None
            if body.prompt_name is not None:
                pooling = (pooling or served.pooling).with_prompt(
                    body.prompt_name, served.prompts, served.model.tokenizer
                )
            return embed_work(served, body.inputs, pooling, body.truncate)

        vectors = await self._embed_texts(make_work, num_characters)
        return json_response(
            {
                "vectors": vectors.values,
                "vector_size": vectors.values.shape[1],
                "usage": vectors.usage,
                "warnings": vectors.warnings,
            }
        )

    async def tokenize(self, request: Request, name: str, body: schemas.TokenizeBody) -> Response:
        """Tokenize a text or a pair: tokens, ids and offsets, and optionally the embeddings that are summed."""
        served = self._model(request, name, "tokenize")
        if body.embeddings and not served.is_inspectable:
            raise RequestError(422, "an exported graph does not expose its embeddings; leave embeddings out")
        num_characters = self._service.check(1, body.texts())
        tokenizer, encoder = served.model.tokenizer, served.model.encoder
        encoding, fields = await self._service.run_tokenization(
            lambda: tokenize_text(tokenizer, body.text, body.pair), num_characters
        )
        if body.embeddings:
            truncated = truncate_encoding(encoding, encoder)
            fields |= await self._service.answer(
                lambda: unbatched_work(served, lambda: embeddings(encoder, truncated)), 0
            )
        return json_response(fields)

    async def attention(self, request: Request, name: str, body: schemas.AttentionBody) -> Response:
        """Return the largest attention weights of all heads, or of one layer and head."""
        served = self._model(request, name, "attention")
        num_characters = self._service.check(1, body.texts())
        tokenizer, encoder = served.model.tokenizer, served.model.encoder
        query = AttentionQuery(body.top_k, body.layer, body.head)

        def make_work() -> Work:
            encoding = truncate_encoding(tokenizer.encode(body.text, body.pair), encoder)
            return unbatched_work(served, lambda: attention(encoder, encoding, tokenizer.specials.pad, query))

        return json_response(await self._service.answer(make_work, num_characters))

    async def explain(self, request: Request, name: str, body: schemas.ExplainBody) -> Response:
        """Explain a prediction: the attribution of each word by integrated gradients."""
        served = self._model(request, name, "explain")
        num_characters = self._service.check(1, body.texts())
        return json_response(
            await self._service.answer(lambda: explain_work(served, body.input, body.target), num_characters)
        )

    async def embeddings(self, request: Request, body: schemas.EmbeddingsBody) -> Response:
        """Embed texts, compatible with OpenAI's API."""
        served = self._model(request, body.model, "embed")
        inputs = body.inputs()
        num_characters = self._service.check(len(inputs), body.texts())
        if any(len(tokens) > self._service.limits.characters for tokens in inputs):
            raise RequestError(
                422, f"an input has more than {self._service.limits.characters:,} tokens; split it into parts"
            )
        pooling = None if body.dimensions is None else served.pooling.untruncated()
        vectors = await self._embed_texts(lambda: embed_work(served, inputs, pooling, False), num_characters)
        values: list[Any] = list(self._service.truncate(served, vectors.values, body.dimensions))
        if body.encoding_format == "base64":
            values = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in values]
        data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(values)]
        num_tokens, num_unknown = vectors.usage.num_tokens, vectors.usage.num_unknown
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "unknown_tokens": num_unknown}
        return json_response({"object": "list", "data": data, "model": served.name, "usage": usage})

    async def projection(self, request: Request, body: schemas.ProjectionBody) -> Response:
        """Project the vectors of texts onto a plane (PCA), with their cosine similarities to a query."""
        served = self._model(request, body.model, "embed")
        texts = body.inputs if body.query is None else [*body.inputs, body.query]
        num_characters = self._service.check(len(texts), texts)
        if not body.inputs:
            raise RequestError(422, "inputs is empty; send at least one text")
        vectors = await self._embed_texts(lambda: embed_work(served, texts, None, False), num_characters)
        values = vectors.values[: len(body.inputs)]
        points = await asyncio.to_thread(project_to_plane, values)
        scores = None if body.query is None else cosines(values, vectors.values[-1])
        return json_response({"points": points, "scores": scores, "warnings": vectors.warnings})

    async def search(self, request: Request, body: schemas.SearchBody) -> Response:
        """Find the passages of the bundle's corpus that are most similar to a query."""
        return await self._search(body.query, body.top_k)

    async def search_by_query(
        self, request: Request, query: str = Query(), top_k: int = Query(10, ge=1, le=schemas.MAX_TOP_K)
    ) -> Response:
        """The same with query parameters."""
        return await self._search(query, top_k)

    async def runs(self, request: Request) -> Response:
        """List the training runs."""
        return json_response({"runs": await asyncio.to_thread(self._summaries)})

    async def run(self, request: Request, name: str, after: int = Query(-1, ge=-1)) -> Response:
        """Return the recipe of a run, its records after a step, its latest samples and the estimated time left."""
        run = self._service.runs.get(name)
        if run is None:
            raise RequestError(404, "no such run; see /v1/runs")
        return json_response(await asyncio.to_thread(run.to_dict, after))

    def _summaries(self) -> list[dict[str, Any]]:
        return [run.summary() for run in self._service.runs.all()]

    def _model(self, request: Request, name: str, capability: str) -> ServedModel:
        request.scope["model"] = name  # label of the metrics
        return self._service.model(name, capability)

    async def _embed_texts(self, make_work: Callable[[], Work], num_characters: int) -> Vectors:
        vectors: Vectors = await self._service.answer(make_work, num_characters)
        return vectors

    async def _search(self, query: str, top_k: int) -> Response:
        search = self._service.search
        if search is None:
            raise RequestError(404, "there is no corpus to search; serve a bundle that was built with --corpus")
        num_characters = self._service.check(1, [query])
        if not query.strip():
            raise RequestError(422, "the query is empty; send at least one word")
        pooling = search.served_model.pooling.untruncated()  # as the passages of the index
        vectors = await self._embed_texts(
            lambda: embed_work(search.served_model, [query], pooling, False), num_characters
        )
        results = await asyncio.to_thread(search.index.search, vectors.values[0], top_k)
        return json_response({"results": results})


def add_endpoints(app: FastAPI, service: Service) -> None:
    """Add all routes under /v1."""
    endpoints = Endpoints(service)
    model_path = "/v1/models/{name}"
    post_routes: list[tuple[str, Callable[..., Any], type]] = [
        (f"{model_path}/predict", endpoints.predict, schemas.PredictResponse),
        (f"{model_path}/embed", endpoints.embed, schemas.EmbedResponse),
        ("/v1/embeddings", endpoints.embeddings, schemas.EmbeddingsResponse),
        (f"{model_path}/fill-mask", endpoints.fill_mask, schemas.FillMaskResponse),
        (f"{model_path}/generate", endpoints.generate, schemas.GenerateResponse),
        (f"{model_path}/next", endpoints.next, schemas.NextResponse),
        (f"{model_path}/tokenize", endpoints.tokenize, schemas.TokenizeResponse),
        (f"{model_path}/attention", endpoints.attention, schemas.AttentionResponse),
        (f"{model_path}/explain", endpoints.explain, schemas.ExplainResponse),
        ("/v1/embeddings/projection", endpoints.projection, schemas.ProjectionResponse),
        ("/v1/search", endpoints.search, schemas.SearchResponse),
    ]
    get_routes: list[tuple[str, Callable[..., Any], type]] = [
        ("/v1/models", endpoints.models, schemas.ModelsResponse),
        (model_path, endpoints.model, schemas.ModelResponse),
        ("/v1/search", endpoints.search_by_query, schemas.SearchResponse),
        ("/v1/runs", endpoints.runs, schemas.RunsResponse),
        ("/v1/runs/{name}", endpoints.run, schemas.RunResponse),
    ]
    for path, endpoint, response_class in post_routes:
        _add_route(app, path, endpoint, "POST", response_class)
    for path, endpoint, response_class in get_routes:
        _add_route(app, path, endpoint, "GET", response_class)


def _add_route(app: FastAPI, path: str, endpoint: Callable[..., Any], method: str, response_class: type) -> None:
    app.router.add_api_route(
        path,
        endpoint,
        methods=[method],
        response_model=None,
        responses={**_ERROR_RESPONSES, 200: {"model": response_class, "description": "success"}},
        route_class_override=JsonRoute if method == "POST" else None,
    )
