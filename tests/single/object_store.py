"""A small object store on the loopback, with as much of S3's protocol as reading needs."""

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

PART = "<Contents><Key>{}</Key><Size>{}</Size><ETag>x</ETag></Contents>"
LIST = (
    "<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>"
    "<KeyCount>{}</KeyCount>{}</ListBucketResult>"
)


@contextmanager
def object_store(objects):
    """Serves objects, bytes by bucket and key; gives the address and the requests so far."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            place = urlsplit(self.path)
            path, query = unquote(place.path).strip("/"), parse_qs(place.query)
            requests.append((self.command, path))
            if "list-type" in query:
                bucket, prefix = path, query.get("prefix", [""])[0]
                found = {
                    key.split("/", 1)[1]: data
                    for key, data in objects.items()
                    if key.startswith(f"{bucket}/{prefix}")
                }
                parts = (PART.format(key, len(data)) for key, data in sorted(found.items()))
                self.answer(200, LIST.format(len(found), "".join(parts)).encode())
            elif path not in objects:
                self.answer(404, b"")
            else:
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                data = objects[path]
                if asked:
                    data = data[int(asked[1]) : int(asked[2]) + 1]
                self.answer(206 if asked else 200, data)

        def answer(self, status, data):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
