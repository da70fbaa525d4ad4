"""A stand-in for the hub on the loopback: repositories in memory, by the requests that huggingface_hub makes."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


class Handler(BaseHTTPRequestHandler):
    repos: dict[str, dict[str, bytes]]

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", head=True, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if head:
            self.wfile.write(content)

    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = self.path.strip("/").split("/")
        if self.path == "/api/repos/create":
            asked = json.loads(content)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.repos.setdefault(name, {})
            self.answer(200, {"url": f"http://{self.headers['Host']}/{name}"}, Content_Type="application/json")
        elif self.path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []}, Content_Type="application/json")
        elif parts[4] == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(content)["files"]
            ]
            self.answer(200, {"files": files}, Content_Type="application/json")
        else:  # commit
            for line in content.splitlines():
                operation = json.loads(line)
                if operation["key"] == "file":
                    value = operation["value"]
                    self.repos["/".join(parts[2:4])][value["path"]] = base64.b64decode(value["content"])
            url = f"http://{self.headers['Host']}/{'/'.join(parts[2:4])}/commit/{COMMIT}"
            answer = {"success": True, "commitOid": COMMIT, "commitUrl": url}
            self.answer(200, answer, Content_Type="application/json")

    def do_GET(self, head=True):
        parts = self.path.partition("?")[0].strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if name not in self.repos:
            self.answer(404, {"error": "Repository not found"}, head, X_Error_Code="RepoNotFound")
        elif parts[0] == "api":
            self.answer(200, self.described(name, tree="tree" in parts), head, Content_Type="application/json")
        else:
            content = self.repos[name].get("/".join(parts[4:]))
            if content is None:
                self.answer(404, {}, head, X_Error_Code="EntryNotFound")
            else:
                tag = f'"{hashlib.sha256(content).hexdigest()}"'
                self.answer(200, content, head, ETag=tag, X_Repo_Commit=COMMIT, Content_Type="application/octet-stream")

    def do_HEAD(self):
        self.do_GET(head=False)

    def described(self, name, tree):
        files = self.repos[name]
        if tree:
            return [{"type": "file", "path": path, "size": len(text), "oid": "0" * 40} for path, text in files.items()]
        return {"id": name, "modelId": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}


@contextmanager
def serving():
    """The address of a hub, and its repositories."""
    repos: dict[str, dict[str, bytes]] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Handler,), {"repos": repos}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", repos
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
