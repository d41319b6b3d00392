"""The endpoints under /v1: checked bodies in, answers as JSON out."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from bertworks.serving import schemas as asked
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

# What any endpoint may answer instead, for the reference.
_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": asked.ErrorResponse, "description": ERROR_TYPES[status].replace("_", " ")}
    for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
}


class Endpoints:
    """What is answered, each by a method that bears the name of its endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        """List the models with what each can do."""
        return json_response({"models": [served.to_dict() for served in self._service.models.values()]})

    async def model(self, request: Request, name: str) -> Response:
        """Tell what one model is and can do."""
        return json_response(self._model(request, name, "tokenize").to_dict())

    async def predict(self, request: Request, name: str, body: asked.PredictBody) -> Response:
        """Predict by the task the model was fine-tuned for: classes, numbers, choices, entities or answers."""
        served = self._model(request, name, "predict")
        size = self._service.check(len(body.inputs), body.texts())
        inputs = [one if isinstance(one, str) else one.model_dump() for one in body.inputs]
        return json_response(
            await self._service.answer(lambda: predict_work(served, inputs, body.truncate, body.by), size)
        )

    async def fill_mask(self, request: Request, name: str, body: asked.FillMaskBody) -> Response:
        """Fill the blanks of a text: candidates for each, and the best ways to fill all of them together."""
        served = self._model(request, name, "fill")
        size = self._service.check(1, body.texts())
        mask = served.model.tokenizer.tokens[served.model.tokenizer.specials.mask]
        if with_model_mask_token(served, body.text).count(mask) > asked.MAX_MASKS:
            raise RequestError(422, f"the text has more than {asked.MAX_MASKS} blanks; fill some of them first")
        return json_response(await self._service.answer(lambda: fill_mask_work(served, body.text, body.top), size))

    async def generate(self, request: Request, name: str, body: asked.GenerateBody) -> Response:
        """Go on with a text, by a model that reads to the left."""
        served = self._model(request, name, "generate")
        size = self._service.check(1, body.texts())
        return json_response(
            await self._service.answer(lambda: generate_work(served, body.text, body.generation_config()), size)
        )

    async def next(self, request: Request, name: str, body: asked.NextBody) -> Response:
        """Tell the words that are likely to stand behind a text, or before it."""
        served = self._model(request, name, "next")
        size = self._service.check(1, body.texts())
        return json_response(
            await self._service.answer(lambda: next_work(served, body.text, body.top, body.backward), size)
        )

    async def embed(self, request: Request, name: str, body: asked.EmbedBody) -> Response:
        """Turn texts into vectors."""
        served = self._model(request, name, "embed")
        size = self._service.check(len(body.inputs), body.texts())
        found = await self._embed_texts(lambda: embed_work(served, body.inputs, body.pooling, body.truncate), size)
        told = {"vectors": found.values, "width": found.values.shape[1], "usage": found.usage}
        return json_response(told)

    async def tokenize(self, request: Request, name: str, body: asked.TokenizeBody) -> Response:
        """Show a text as the model sees it: pieces, ids, positions, segments, and the embeddings that are summed."""
        served = self._model(request, name, "tokenize")
        if body.embeddings and not served.is_inspectable:
            raise RequestError(422, "a graph does not show the embeddings in it; leave embeddings out")
        size = self._service.check(1, body.texts())
        tokenizer, encoder = served.model.tokenizer, served.model.encoder
        encoding, told = await self._service.run_tokenization(
            lambda: tokenize_text(tokenizer, body.text, body.pair), size
        )
        if body.embeddings:
            row = truncate_encoding(encoding, encoder)
            told |= await self._service.answer(lambda: unbatched_work(served, lambda: embeddings(encoder, row)), 0)
        return json_response(told)

    async def attention(self, request: Request, name: str, body: asked.AttentionBody) -> Response:
        """Show who reads whom: the strongest links of all heads, or of one layer and head."""
        served = self._model(request, name, "attention")
        size = self._service.check(1, body.texts())
        tokenizer, encoder = served.model.tokenizer, served.model.encoder
        look = AttentionQuery(body.num_links, body.layer, body.head)

        def make() -> Work:
            row = truncate_encoding(tokenizer.encode(body.text, body.pair), encoder)
            return unbatched_work(served, lambda: attention(encoder, row, tokenizer.specials.pad, look))

        return json_response(await self._service.answer(make, size))

    async def explain(self, request: Request, name: str, body: asked.ExplainBody) -> Response:
        """Tell which words drove a prediction, and which spoke against it."""
        served = self._model(request, name, "explain")
        size = self._service.check(1, body.texts())
        given = body.input if isinstance(body.input, str) else body.input.model_dump()
        return json_response(await self._service.answer(lambda: explain_work(served, given, body.target), size))

    async def embeddings(self, request: Request, body: asked.EmbeddingsBody) -> Response:
        """The same vectors in OpenAI's words, for programs that speak them."""
        served = self._model(request, body.model, "embed")
        inputs = body.inputs()
        size = self._service.check(len(inputs), body.texts())
        if any(len(one) > self._service.limits.characters for one in inputs):
            raise RequestError(
                422, f"an input has more than {self._service.limits.characters:,} pieces; send parts of it"
            )
        found = await self._embed_texts(lambda: embed_work(served, inputs, None, False), size)
        width = found.values.shape[1]
        if body.dimensions not in (None, width):
            raise RequestError(
                422, f"this model has vectors of {width} numbers and no shorter ones; leave dimensions out"
            )
        values: list[Any] = list(found.values)
        if body.encoding_format == "base64":
            values = [base64.b64encode(one.astype("<f4").tobytes()).decode() for one in values]
        data = [{"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(values)]
        usage = {"prompt_tokens": found.usage.num_tokens, "total_tokens": found.usage.num_tokens}
        return json_response({"object": "list", "data": data, "model": served.name, "usage": usage})

    async def map(self, request: Request, body: asked.MapBody) -> Response:
        """Lay texts on a plane by their vectors, with the cosine of each to a query."""
        served = self._model(request, body.model, "embed")
        texts = body.inputs if body.query is None else [*body.inputs, body.query]
        size = self._service.check(len(texts), texts)
        if not body.inputs:
            raise RequestError(422, "there is nothing to lay on a plane; send at least one text")
        found = await self._embed_texts(lambda: embed_work(served, texts, None, False), size)
        values = found.values[: len(body.inputs)]
        points = await asyncio.to_thread(project_to_plane, values)
        scores = None if body.query is None else cosines(values, found.values[-1])
        return json_response({"points": points, "scores": scores})

    async def search(self, request: Request, body: asked.SearchBody) -> Response:
        """Find the passages of the bundle's corpus that are nearest to a query."""
        return await self._search(body.query, body.top)

    async def search_by_address(
        self, request: Request, query: str = Query(), top: int = Query(10, ge=1, le=asked.MAX_TOP)
    ) -> Response:
        """The same, to be asked by an address alone."""
        return await self._search(query, top)

    async def runs(self, request: Request) -> Response:
        """List the training runs that are followed."""
        return json_response({"runs": await asyncio.to_thread(self._summaries)})

    async def run(self, request: Request, name: str, after: int = Query(-1, ge=-1)) -> Response:
        """Tell a run's recipe, its records after a step, its last samples and the time that is left."""
        run = self._service.runs.get(name)
        if run is None:
            raise RequestError(404, "there is no such run; /v1/runs lists those that are followed")
        return json_response(await asyncio.to_thread(run.to_dict, after))

    def _summaries(self) -> list[dict[str, Any]]:
        return [run.summary() for run in self._service.runs.all()]

    def _model(self, request: Request, name: str, capability: str) -> ServedModel:
        request.scope["model"] = name  # for the metrics, which know their models
        return self._service.model(name, capability)

    async def _embed_texts(self, make: Callable[[], Work], size: int) -> Vectors:
        found: Vectors = await self._service.answer(make, size)
        return found

    async def _search(self, query: str, top: int) -> Response:
        search = self._service.search
        if search is None:
            raise RequestError(404, "no corpus is served; serve a bundle that was made with --corpus")
        size = self._service.check(1, [query])
        if not query.strip():
            raise RequestError(422, "the query is empty; write what to look for")
        found = await self._embed_texts(lambda: embed_work(search.served_model, [query], None, False), size)
        results = await asyncio.to_thread(search.index.search, found.values[0], top)
        return json_response({"results": results})


def add_endpoints(app: FastAPI, service: Service) -> None:
    """Put the endpoints under their addresses."""
    own = Endpoints(service)
    below = "/v1/models/{name}/"
    posted: list[tuple[str, Callable[..., Any], type]] = [
        (f"{below}predict", own.predict, asked.PredictResponse),
        (f"{below}embed", own.embed, asked.EmbedResponse),
        ("/v1/embeddings", own.embeddings, asked.EmbeddingsResponse),
        (f"{below}fill", own.fill_mask, asked.FillMaskResponse),
        (f"{below}generate", own.generate, asked.GenerateResponse),
        (f"{below}next", own.next, asked.NextResponse),
        (f"{below}tokenize", own.tokenize, asked.TokenizeResponse),
        (f"{below}attention", own.attention, asked.AttentionResponse),
        (f"{below}explain", own.explain, asked.ExplainResponse),
        ("/v1/vectors/map", own.map, asked.MapResponse),
        ("/v1/search", own.search, asked.SearchResponse),
    ]
    got: list[tuple[str, Callable[..., Any], type]] = [
        ("/v1/models", own.models, asked.ModelsResponse),
        ("/v1/models/{name}", own.model, asked.ModelResponse),
        ("/v1/search", own.search_by_address, asked.SearchResponse),
        ("/v1/runs", own.runs, asked.RunsResponse),
        ("/v1/runs/{name}", own.run, asked.RunResponse),
    ]
    for path, endpoint, answer in posted:
        _add(app, path, endpoint, "POST", answer)
    for path, endpoint, answer in got:
        _add(app, path, endpoint, "GET", answer)


def _add(app: FastAPI, path: str, endpoint: Callable[..., Any], method: str, response_class: type) -> None:
    app.router.add_api_route(
        path,
        endpoint,
        methods=[method],
        response_model=None,
        responses={**_ERROR_RESPONSES, 200: {"model": response_class, "description": "the answer"}},
        route_class_override=JsonRoute if method == "POST" else None,
    )
