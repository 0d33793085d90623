"""A small S3 server in this process, which can be down, full, or hang: enough of the protocol for ``pyarrow.fs``."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

BUCKET = "bucket"
DATE = "Mon, 30 Nov 2026 00:00:00 GMT"
STAMP = "2026-11-30T00:00:00.000Z"
_PIECE = 512


@dataclass
class ObjectStore:
    """What the server holds, and how it behaves.

    Attributes:
        objects: by key.
        down: whether every request fails.
        room: bytes that it still takes; None for any number.
        hangs: while this is cleared, requests that write get no answer.
        hung: set when such a request has come.
        arriving: called with the key and the bytes that have come so far, again and again while an object comes.
    """

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    down: bool = False
    room: int | None = None
    hangs: threading.Event = field(default_factory=threading.Event)
    hung: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    arriving: Callable[[str, int], None] = lambda key, count: None

    def uri(self, folder: str) -> str:
        """Of a folder in the bucket."""
        options = f"scheme=http&endpoint_override=127.0.0.1:{self.port}&region=us-east-1"
        return f"s3://key:secret@{BUCKET}/{folder}?{options}"

    def keys(self, prefix: str = "") -> list[str]:
        """Of all objects that are no folders."""
        with self.lock:
            return sorted(key for key in self.objects if key.startswith(prefix) and not key.endswith("/"))

    def takes(self, data: bytes) -> bool:
        """Whether there is room for them."""
        with self.lock:
            if self.room is None:
                return True
            self.room -= len(data)
            return self.room >= 0


@contextmanager
def serving() -> Iterator[ObjectStore]:
    """An empty store, while the block runs."""
    store = ObjectStore()
    store.hangs.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"store": store}))
    server.daemon_threads = True
    store.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.hangs.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectStore

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def _answer(self, act: Any) -> None:
        body = self._body()
        if self.store.down:
            # Not one of those that the client tries again for long.
            self._say(HTTPStatus.FORBIDDEN, "<Error><Code>AccessDenied</Code><Message>it is down</Message></Error>")
            return
        if self.command in ("PUT", "POST") and not self.store.hangs.is_set():
            self.store.hung.set()
            # Ended by the test, or with the server.
            self.store.hangs.wait()
        act(body)

    def _body(self) -> bytes:
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            return self._chunks()
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return self._chunks()
        return self._read(int(self.headers.get("Content-Length", 0)))

    def _read(self, count: int) -> bytes:
        data = bytearray()
        # Like a careless store it keeps what has come, should its sender be gone.
        while len(data) < count and (more := self.rfile.read1(min(_PIECE, count - len(data)))):
            data += more
            self.store.arriving(self._key, len(data))
        return bytes(data)

    def _chunks(self) -> bytes:
        inner = "aws-chunked" in self.headers.get("Content-Encoding", "")
        if inner and "Content-Length" in self.headers:
            raw = self._read(int(self.headers["Content-Length"]))
        else:
            raw = self._dechunked_from_wire()
        return _dechunked(raw) if inner else raw

    def _dechunked_from_wire(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self._read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return data

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    @property
    def _query(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    def _get(self, body: bytes) -> None:
        if not self._key:
            if "list-type" in self._query:
                self._list()
            else:
                self._say(HTTPStatus.OK)
            return
        with self.store.lock:
            data = self.store.objects.get(self._key)
        if data is None:
            self._say(HTTPStatus.NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>")
            return
        wanted = self.headers.get("Range")
        if wanted:
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            stop = min(int(end) + 1 if end else len(data), len(data))
            extra = {"Content-Range": f"bytes {begin}-{stop - 1}/{len(data)}"}
            self._say(HTTPStatus.PARTIAL_CONTENT, data[int(begin) : stop], **extra)
        else:
            self._say(HTTPStatus.OK, data)

    def _list(self) -> None:
        prefix, between = self._query.get("prefix", ""), self._query.get("delimiter", "")
        found, folders = [], set()
        with self.store.lock:
            for key, data in sorted(self.store.objects.items()):
                if not key.startswith(prefix):
                    continue
                rest = key[len(prefix) :]
                if between and between in rest:
                    folders.add(prefix + rest.split(between)[0] + between)
                else:
                    found.append((key, len(data)))
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{STAMP}</LastModified><ETag>&quot;e&quot;</ETag>"
            f"<Size>{size}</Size></Contents>"
            for key, size in found
        )
        commons = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        count = f"<KeyCount>{len(found) + len(folders)}</KeyCount><IsTruncated>false</IsTruncated>"
        self._say(HTTPStatus.OK, f"<ListBucketResult>{count}{contents}{commons}</ListBucketResult>")

    def _put(self, body: bytes) -> None:
        if not self.store.takes(body):
            self._say(HTTPStatus.INSUFFICIENT_STORAGE, "<Error><Code>QuotaExceeded</Code></Error>")
            return
        with self.store.lock:
            if "uploadId" in self._query:
                self.store.uploads[self._query["uploadId"]][int(self._query["partNumber"])] = body
            else:
                self.store.objects[self._key] = body
        self._say(HTTPStatus.OK, ETag='"e"')

    def _post(self, body: bytes) -> None:
        query = self._query
        if "uploads" in query:
            with self.store.lock:
                upload = str(len(self.store.uploads))
                self.store.uploads[upload] = {}
            names = f"<Bucket>{BUCKET}</Bucket><Key>{escape(self._key)}</Key><UploadId>{upload}</UploadId>"
            self._say(HTTPStatus.OK, f"<InitiateMultipartUploadResult>{names}</InitiateMultipartUploadResult>")
        elif "uploadId" in query:
            with self.store.lock:
                parts = self.store.uploads[query["uploadId"]]
                self.store.objects[self._key] = b"".join(data for _, data in sorted(parts.items()))
            names = f"<Bucket>{BUCKET}</Bucket><Key>{escape(self._key)}</Key><ETag>&quot;e&quot;</ETag>"
            self._say(HTTPStatus.OK, f"<CompleteMultipartUploadResult>{names}</CompleteMultipartUploadResult>")
        else:
            with self.store.lock:
                for element in ElementTree.fromstring(body).iter():
                    if element.tag.endswith("Key") and element.text:
                        self.store.objects.pop(element.text, None)
            self._say(HTTPStatus.OK, "<DeleteResult></DeleteResult>")

    def _delete(self, body: bytes) -> None:
        with self.store.lock:
            self.store.objects.pop(self._key, None)
        self._say(HTTPStatus.NO_CONTENT)

    def _say(self, status: HTTPStatus, body: bytes | str = b"", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Last-Modified": DATE, "ETag": '"e"', **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _dechunked(raw: bytes) -> bytes:
    """What lies in the chunks of AWS, which have signatures behind their sizes."""
    data = b""
    while raw:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line.split(b";")[0] or b"0", 16)
        if not size:
            break
        data, raw = data + raw[:size], raw[size + 2 :]
    return data
