"""A stand-in for Elasticsearch 8 and 9 and OpenSearch: what a migration and its users ask of the REST interface.

No server ran here. Paths, bodies, answers and refusals follow the documentation: a search finds what was written before
the last refresh, documents of Elasticsearch 9.2 come without vectors unless asked for, which older ones refuse, ids
cannot be sorted by, the width of a field cannot be changed, pages have at most 10,000 hits, and copies through the
default pipeline are marked.
"""

import base64
import json
import threading
import uuid
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

KEY, USER = "s3cret-key-of-the-server", "me:s3cret-key-of-the-server"
LOGINS = {f"ApiKey {KEY}", f"Basic {base64.b64encode(USER.encode()).decode()}"}


class Refused(Exception):
    def __init__(self, status, kind, reason):
        super().__init__(reason)
        self.status, self.body = status, {"type": kind, "reason": reason}


def fields(mapping, before=""):
    for name, field in mapping.get("properties", {}).items():
        if "properties" in field:
            yield from fields(field, f"{before}{name}.")
        else:
            yield f"{before}{name}", field


def flat(source, before=""):
    """Yield the values of a document with their paths: objects and names with dots are the same."""
    for name, value in source.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", value


def keep(source, test, before=""):
    """Return the parts of a document whose paths pass a test."""
    found = {}
    for name, value in source.items():
        if isinstance(value, dict):
            if inner := keep(value, test, f"{before}{name}."):
                found[name] = inner
        elif test(f"{before}{name}"):
            found[name] = value
    return found


class Index:
    def __init__(self, name, body):
        for key in body.get("settings", {}):
            if key in ("index.uuid", "index.creation_date", "index.provided_name", "index.version.created"):
                words = f"unknown setting [{key}] or private index setting"
                raise Refused(400, "illegal_argument_exception", words)
        self.name, self.aliases, self.docs, self.seen, self.count = name, body.get("aliases", {}), {}, {}, 0
        self.mapping = deepcopy(body.get("mappings", {}))
        self.settings = {"index.number_of_shards": "1", "index.number_of_replicas": "1"}
        self.settings |= {"index.uuid": uuid.uuid4().hex, "index.provided_name": name, "index.creation_date": "17"}
        self.settings |= {"index.version.created": "9039000"}
        for key, value in body.get("settings", {}).items():
            self.settings[key if key.startswith("index.") else f"index.{key}"] = str(value)

    def remap(self, body):
        known = dict(fields(self.mapping))
        for path, field in fields(body):
            if path in known and known[path] != field:
                words = f"Mapper for [{path}] conflicts with existing mapper: Cannot update parameter"
                raise Refused(400, "illegal_argument_exception", words)
        if "_meta" in body:
            self.mapping["_meta"] = body["_meta"]

        def merge(mine, given):
            for name, field in given.get("properties", {}).items():
                own = mine.setdefault("properties", {}).setdefault(name, {})
                own.update({key: value for key, value in field.items() if key != "properties"})
                merge(own, field)

        merge(self.mapping, body)

    def put(self, one, source, action, pipeline):
        old = self.docs.get(one)
        if "if_seq_no" in action and (not old or old["_seq_no"] != action["if_seq_no"]):
            raise Refused(409, "version_conflict_engine_exception", f"[{one}]: version conflict")
        known = dict(fields(self.mapping))
        for path, value in flat(source):
            width = known.get(path, {}).get("dims") or known.get(path, {}).get("dimension")
            if width and len(value) != width:
                words = f"The [dense_vector] field [{path}] in doc [document with id '{one}'] has a different number "
                words += f"of dimensions [{len(value)}] than defined in the mapping [{width}]"
                raise Refused(400, "document_parsing_exception", words)
            if width and known[path].get("similarity") == "dot_product" and abs(np.linalg.norm(value) - 1) > 1e-3:
                words = "The [dot_product] similarity can only be used with unit-length vectors"
                raise Refused(400, "document_parsing_exception", words)
            if path not in known:
                name, *inner = reversed(path.split("."))
                field = {name: {"type": "text"}}
                for outer in inner:
                    field = {outer: {"properties": field}}
                self.remap({"properties": field})
        if pipeline is None and "index.default_pipeline" in self.settings:
            source = {**source, "piped": source.get("piped", 0) + 1}
        self.count += 1
        self.docs[one] = {"_id": one, "_source": source, "_seq_no": self.count, "_primary_term": 1}
        if "routing" in action:
            self.docs[one]["_routing"] = action["routing"]
        return old

    def matches(self, query, doc):
        match query:
            case {"match_all": _}:
                return True
            case {"ids": {"values": values}}:
                return doc["_id"] in values
            case {"exists": {"field": field}}:
                return field in dict(flat(doc["_source"]))
            case {"term": term}:
                ((field, value),) = term.items()
                return dict(flat(doc["_source"])).get(field) == value
            case {"bool": parts}:
                parts = {key: value if isinstance(value, list) else [value] for key, value in parts.items()}
                assert not parts.keys() - {"filter", "must", "must_not"}
                wanted = parts.get("filter", []) + parts.get("must", [])
                return all(self.matches(one, doc) for one in wanted) and not any(
                    self.matches(one, doc) for one in parts.get("must_not", [])
                )
        raise Refused(400, "parsing_exception", f"unknown query {query}")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, product="elasticsearch", version="9.2.1"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.product, self.version, self.lock = product, version, threading.RLock()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.address = f"{product}+{self.url}"
        self.clear()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def clear(self):
        self.indexes, self.scrolls, self.seen = {}, {}, []
        self.faults = []  # pairs of the end of a path, and a status or "drop", "part", "item"

    def stop(self):
        self.shutdown()
        self.server_close()
        self.thread.join()

    @property
    def hides(self):
        return self.product == "elasticsearch" and tuple(map(int, self.version.split(".")[:2])) >= (9, 2)

    def find(self, name):
        found = [one for one in self.indexes.values() if one.name == name or name in one.aliases]
        if not found:
            raise Refused(404, "index_not_found_exception", f"no such index [{name}]")
        if len(found) > 1:
            raise Refused(400, "illegal_argument_exception", f"alias [{name}] has more than one index")
        return found[0]

    def shown(self, index, doc, asked):
        if asked is False:
            return {key: doc[key] for key in ("_id", "_routing") if key in doc} | {"_index": index.name}
        asked = {} if asked in (None, True) else {"includes": asked} if isinstance(asked, list) else asked
        dense = {path for path, field in fields(index.mapping) if field.get("type") == "dense_vector"}
        if "exclude_vectors" in asked and not self.hides:
            raise Refused(400, "parsing_exception", "Unknown key for a VALUE_BOOLEAN in [exclude_vectors].")
        hidden = dense if self.hides and asked.get("exclude_vectors", True) else set()
        only = asked.get("includes")

        def test(path):
            chosen = only is None or any(path == one or path.startswith(f"{one}.") for one in only)
            return chosen and path not in hidden

        return {**doc, "_index": index.name, "_source": keep(doc["_source"], test)}

    def search(self, index, body, params):
        if unknown := body.keys() - {
            "query",
            "knn",
            "size",
            "sort",
            "_source",
            "track_total_hits",
            "seq_no_primary_term",
        }:
            raise Refused(400, "parsing_exception", f"unknown key {unknown}")
        if body.get("size", 10) > 10_000:
            raise Refused(400, "illegal_argument_exception", "Result window is too large")
        if any("_id" in str(one) for one in body.get("sort", [])):
            raise Refused(400, "illegal_argument_exception", "Fielddata access on the _id field is disallowed")
        docs, size = list(index.seen.values()), body.get("size", 10)
        knn, query = body.get("knn"), body.get("query", {"match_all": {}})
        if self.product == "opensearch" and "knn" in query:
            ((field, facts),) = query["knn"].items()
            knn, query = {**facts, "field": field, "query_vector": facts["vector"]}, {"match_all": {}}
        elif knn is not None:
            assert knn.keys() <= {"field", "query_vector", "k", "num_candidates", "filter"}
            if not knn["k"] <= knn["num_candidates"] <= 10_000:
                raise Refused(400, "illegal_argument_exception", "[num_candidates] cannot be less than [k]")
        docs = [doc for doc in docs if index.matches(query, doc)]
        if knn:
            has = [(doc, dict(flat(doc["_source"])).get(knn["field"])) for doc in docs]
            has = [(doc, v) for doc, v in has if v and ("filter" not in knn or index.matches(knn["filter"], doc))]
            unit = [np.array(v) / np.linalg.norm(v) for _, v in has]
            order = np.argsort([-float(v @ np.array(knn["query_vector"])) for v in unit], kind="stable")
            docs = [has[k][0] for k in order[: knn["k"]]]
        answer = {"took": 1, "timed_out": False, "_shards": {"total": 2, "successful": 2, "failed": 0}}
        hits = [self.shown(index, doc, body.get("_source")) for doc in docs]
        answer["hits"] = {"total": {"value": len(hits), "relation": "eq"}, "hits": hits[:size]}
        if "scroll" in params:
            answer["_scroll_id"] = key = uuid.uuid4().hex
            self.scrolls[key] = hits[size:], size
        return deepcopy(answer)

    def do(self, method, parts, body, params):
        known = {"flat_settings", "refresh", "scroll", "pipeline", "conflicts", "routing"}
        if params.keys() - known:
            words = f"request [{parts}] contains unrecognized parameter: {params.keys() - known}"
            raise Refused(400, "illegal_argument_exception", words)
        match method, parts:
            case "GET", []:
                version = {"number": self.version, "build_flavor": "default"}
                if self.product == "opensearch":
                    version["distribution"] = "opensearch"
                return {"name": "n", "cluster_name": "c", "version": version, "tagline": "You Know, for Search"}
            case "GET", ["_alias"]:
                return {one.name: {"aliases": one.aliases} for one in self.indexes.values()}
            case "POST", ["_aliases"]:
                made = {name: dict(one.aliases) for name, one in self.indexes.items()}
                for action in body["actions"]:
                    ((what, facts),) = action.items()
                    facts = dict(facts)
                    index, alias = self.find(facts.pop("index")).name, facts.pop("alias")
                    if alias in self.indexes:
                        words = f"an index or data stream exists with the same name as the alias [{alias}]"
                        raise Refused(400, "invalid_alias_name_exception", words)
                    if what == "remove" and made[index].pop(alias, None) is None:
                        raise Refused(404, "aliases_not_found_exception", f"aliases [{alias}] missing")
                    if what == "add":
                        made[index][alias] = facts
                for name, aliases in made.items():
                    self.indexes[name].aliases = aliases
                return {"acknowledged": True, "errors": False}
            case "POST", ["_search", "scroll"]:
                if body["scroll_id"] not in self.scrolls:
                    raise Refused(404, "search_context_missing_exception", "No search context found")
                hits, size = self.scrolls[body["scroll_id"]]
                self.scrolls[body["scroll_id"]] = hits[size:], size
                return {"_scroll_id": body["scroll_id"], "timed_out": False, "hits": {"hits": hits[:size]}}
            case "DELETE", ["_search", "scroll"]:
                return {"succeeded": self.scrolls.pop(body["scroll_id"], None) is not None, "num_freed": 1}
            case "PUT", [name]:
                taken = name in self.indexes or any(name in one.aliases for one in self.indexes.values())
                if taken or name != name.lower():
                    kind = "resource_already_exists_exception" if taken else "invalid_index_name_exception"
                    raise Refused(400, kind, f"index [{name}] already exists, or must be lowercase")
                self.indexes[name] = Index(name, body or {})
                return {"acknowledged": True, "index": name}
            case "DELETE", [name]:
                if name not in self.indexes:
                    raise Refused(404, "index_not_found_exception", f"no such index [{name}]")
                del self.indexes[name]
                return {"acknowledged": True}
        index = self.find(parts[0])
        match method, parts[1:]:
            case "GET", ["_mapping"]:
                return {index.name: {"mappings": index.mapping}}
            case "PUT", ["_mapping"]:
                index.remap(deepcopy(body))
            case "GET", ["_settings"]:
                return {index.name: {"settings": index.settings}}
            case "PUT", ["_settings"]:
                index.settings.update({f"index.{key.removeprefix('index.')}": str(body[key]) for key in body})
            case (("POST" | "GET"), ["_refresh"]):
                index.seen = dict(index.docs)
                return {"_shards": {"total": 2, "successful": 1, "failed": 0}}
            case (("POST" | "GET"), ["_search"]):
                return self.search(index, body or {}, params)
            case "POST", ["_bulk"]:
                return self.bulk(index, body, params)
            case "POST", ["_delete_by_query"]:
                gone = [one for one, doc in index.seen.items() if index.matches(body["query"], doc)]
                same = [one for one in gone if index.docs.get(one) is index.seen[one]]  # no conflict of versions
                for one in same:
                    del index.docs[one]
                conflicts = len(gone) - len(same)
                return {"deleted": len(same), "version_conflicts": conflicts, "failures": [], "timed_out": False}
            case "PUT", ["_doc", one]:
                old = index.put(one, body, params, None)
                return {"_id": one, "result": "updated" if old else "created"}
            case "DELETE", ["_doc", one]:
                if index.docs.pop(one, None) is None:
                    raise Refused(404, "not_found", f"no document {one}")
                return {"_id": one, "result": "deleted"}
            case _:
                raise Refused(405, "method_not_allowed", f"{method} {parts}")
        return {"acknowledged": True}

    def bulk(self, index, lines, params):
        items = []
        for head, source in zip(lines[::2], lines[1::2], strict=True):
            action = head["index"]
            try:
                if self.faults and self.faults[0][1] == "item":
                    self.faults.pop(0)
                    raise Refused(429, "es_rejected_execution_exception", "rejected execution of a bulk request")
                index.put(action["_id"], source, action, params.get("pipeline"))
                items.append({"index": {"_id": action["_id"], "status": 201}})
            except Refused as error:
                items.append({"index": {"_id": action["_id"], "status": error.status, "error": error.body}})
        return {"errors": any("error" in item["index"] for item in items), "items": items}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second of two waits for an acknowledgment

    def log_message(self, *arguments):
        pass

    def handle_one(self):
        server, parts = self.server, urlsplit(self.path)
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = parts.path.rstrip("/")
        with server.lock:
            server.seen.append(f"{self.command} {path}")
            if self.headers.get("Authorization") not in LOGINS:
                return self.reply(401, {"error": {"reason": "missing authentication credentials"}, "status": 401})
            fault = next((one for one in server.faults if path.endswith(one[0]) and one[1] != "item"), None)
            if fault:
                server.faults.remove(fault)
                if fault[1] == "drop":
                    self.close_connection = True
                    return self.connection.close()
                if fault[1] != "part":
                    return self.reply(fault[1], {"error": {"reason": "injected"}, "status": fault[1]})
            kind = (self.headers.get("Content-Type") or "").partition(";")[0]
            params = {name: values[0] for name, values in parse_qs(parts.query).items()}
            try:
                if "ndjson" in kind:
                    if not text.endswith(b"\n"):
                        raise Refused(400, "illegal_argument_exception", "must be terminated by a newline [\\n]")
                    body = [json.loads(line) for line in text.splitlines()]
                elif text and "json" not in kind:
                    raise Refused(406, "media_type_header_exception", f"Content-Type [{kind}] is not supported")
                else:
                    body = json.loads(text) if text else None
                answer = server.do(self.command, [unquote(one) for one in path.split("/") if one], body, params)
            except Refused as error:
                return self.reply(error.status, {"error": error.body, "status": error.status})
            if fault:
                answer["_shards"] = {"total": 2, "successful": 1, "failed": 1}
            return self.reply(200, answer)

    do_GET = do_POST = do_PUT = do_DELETE = handle_one

    def reply(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        if self.server.product == "elasticsearch":
            self.send_header("X-Elastic-Product", "Elasticsearch")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
