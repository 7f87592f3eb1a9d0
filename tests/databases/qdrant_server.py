"""A stand-in for a Qdrant server: the part of its REST interface that a migration uses, on top of the client's local
mode.

No server can be installed where the tests run. Paths, bodies, responses, the API key header and the size limit of a
request follow the server; settings that the local mode does not store (shards, HNSW graphs, quantization, payload
indexes) are kept and returned as they were sent.
"""

import asyncio
import json
import threading
import time
import warnings

import uvicorn
from qdrant_client import QdrantClient, models
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

KEY = "s3cret-key-of-the-server"


class Server:
    """A server in a thread, until :meth:`stop`; ``faults`` maps the end of a path to the response to send instead."""

    def __init__(self, limit=32 * 2**20):
        self.client = QdrantClient(":memory:", force_disable_check_same_thread=True)
        self.limit = limit
        self.configs: dict[str, dict] = {}
        self.indexes: dict[str, dict] = {}
        self.seen: list[str] = []
        self.faults: list[tuple[str, int | float | str]] = []
        self.status = "green"
        app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "PUT", "POST", "PATCH", "DELETE"])])
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
        self.uvicorn = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.uvicorn.run, daemon=True)
        self.thread.start()
        while not self.uvicorn.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.uvicorn.servers[0].sockets[0].getsockname()[1]}"

    def stop(self):
        self.uvicorn.should_exit = True
        self.thread.join()

    def clear(self):
        for one in self.client.get_collections().collections:
            self.client.delete_collection(one.name)
        for kept in (self.configs, self.indexes, self.seen, self.faults):
            kept.clear()
        self.status = "green"

    async def answer(self, request):
        path = request.url.path
        self.seen.append(f"{request.method} {path}")
        if request.headers.get("api-key") != KEY:
            return JSONResponse({"status": {"error": "Must provide an API key or an Authorization bearer token"}}, 401)
        body = await request.body()
        for fault in self.faults:
            if f"{request.method} {path}".endswith(fault[0]):
                self.faults.remove(fault)
                if isinstance(fault[1], float):
                    await asyncio.sleep(fault[1])
                    break
                if isinstance(fault[1], str):
                    return JSONResponse({"status": {"error": fault[1]}}, 500)
                return JSONResponse({"status": {"error": "injected"}}, fault[1])
        if len(body) > self.limit:
            words = (
                f"Payload error: JSON payload ({len(body)} bytes) is larger than allowed (limit: {self.limit} bytes)."
            )
            return JSONResponse({"status": {"error": words}}, 400)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = self.do(
                    request.method, [part for part in path.split("/") if part], json.loads(body or b"null")
                )
        except ValueError as error:
            return JSONResponse({"status": {"error": str(error)}}, 404 if "not found" in str(error) else 400)
        if hasattr(result, "model_dump"):
            result = result.model_dump(mode="json", exclude_none=True)
        return JSONResponse({"result": result, "status": "ok", "time": 0.0})

    def do(self, method, parts, body):
        client = self.client
        match method, parts:
            case "GET", ["collections"]:
                return client.get_collections()
            case "GET", ["aliases"]:
                return client.get_aliases()
            case "POST", ["collections", "aliases"]:
                return client.update_collection_aliases(models.ChangeAliasesOperation.model_validate(body).actions)
            case "GET", ["collections", name, "aliases"]:
                return client.get_collection_aliases(name)
            case "PUT", ["collections", name]:
                asked = models.CreateCollection.model_validate(body)
                self.configs[name] = body
                return client.create_collection(
                    name, asked.vectors, sparse_vectors_config=asked.sparse_vectors, metadata=asked.metadata
                )
            case "PATCH", ["collections", name]:
                return client.update_collection(name, metadata=body["metadata"])
            case "DELETE", ["collections", name]:
                self.configs.pop(name, None)
                self.indexes.pop(name, None)
                return client.delete_collection(name)
            case "GET", ["collections", name]:
                return self.describe(name)
            case "PUT", ["collections", name, "index"]:
                self.indexes.setdefault(name, {})[body["field_name"]] = body["field_schema"]
                return {"operation_id": 0, "status": "completed"}
            case _, ["collections", name, "points", *what]:
                return self.points(method, name, what, body)
        raise ValueError(f"not found: {method} {parts}")

    def describe(self, name):
        found = self.client.get_collection(name).model_dump(mode="json", exclude_none=True)
        given = self.configs.get(name, {})
        config = found["config"]
        for key, here in (("hnsw_config", "hnsw_config"), ("optimizers_config", "optimizer_config")):
            config[here] |= given.get(key, {})
        config |= {key: given[key] for key in ("quantization_config", "strict_mode_config") if key in given}
        for key in ("shard_number", "replication_factor", "write_consistency_factor", "on_disk_payload"):
            if key in given:
                config["params"][key] = given[key]
        for field, schema in self.indexes.get(name, {}).items():
            kind = schema if isinstance(schema, str) else schema["type"]
            found["payload_schema"][field] = {"data_type": kind, "points": 0}
            if not isinstance(schema, str):
                found["payload_schema"][field]["params"] = schema
        return found | {"status": self.status}

    def points(self, method, name, what, body):
        client = self.client
        match method, what:
            case "POST", []:
                asked = models.PointRequest.model_validate(body)
                found = client.retrieve(name, asked.ids, asked.with_payload, asked.with_vector)
                return [one.model_dump(mode="json", exclude_none=True) for one in found]
            case "PUT", []:
                batch = models.PointsBatch.model_validate(body).batch if "batch" in body else None
                return client.upsert(name, batch or models.PointsList.model_validate(body).points)
            case "POST", ["scroll"]:
                asked = models.ScrollRequest.model_validate(body)
                page = {"scroll_filter": asked.filter, "limit": asked.limit, "offset": asked.offset}
                parts = {"with_payload": asked.with_payload, "with_vectors": asked.with_vector}
                records, following = client.scroll(name, **page, **parts)
                found = [one.model_dump(mode="json", exclude_none=True) for one in records]
                return {"points": found, "next_page_offset": following}
            case "POST", ["count"]:
                return client.count(name, models.CountRequest.model_validate(body).filter)
            case "POST", ["delete"]:
                kind = models.PointIdsList if "points" in body else models.FilterSelector
                return client.delete(name, kind.model_validate(body))
            case "POST", ["payload"]:
                return client.set_payload(name, body["payload"], points=body["points"])
            case "PUT", ["vectors"]:
                return client.update_vectors(name, models.UpdateVectors.model_validate(body).points)
            case "POST", ["query", "batch"]:
                searches = [models.QueryRequest.model_validate(one) for one in body["searches"]]
                found = client.query_batch_points(name, searches)
                return [one.model_dump(mode="json", exclude_none=True) for one in found]
        raise ValueError(f"not found: {method} {what}")
