# SPDX-License-Identifier: Apache-2.0
"""A process that answers like a server: quick to start, with a child, and wrong on request.

python standin.py PORT BEHAVIOUR
"""

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

ANSWER = {
    "output_ids": [5, 6],
    "meta_info": {
        "prompt_tokens": 40,
        "cached_tokens": 32,
        "cached_tokens_details": {"device": 16, "host": 0, "storage": 16},
        "output_token_logprobs": [[-0.5, 5, None], [-1.5, 6, None]],
    },
}


class Handler(BaseHTTPRequestHandler):
    flushes = 0

    def do_GET(self) -> None:
        if self.path == "/metrics":
            text = '# HELP x\nx_total{tier="a"} 2.0\nx_total{tier="b"} 3.5\ny 1\n'
            return self.reply(200, text)
        return self.reply(503 if behaviour == "unhealthy" else 200, "")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/flush_cache":
            Handler.flushes += 1
            return self.reply(400 if behaviour == "busy" or Handler.flushes < 3 else 200, "busy")
        print("asked", body.decode(), flush=True)
        if behaviour == "slow":
            time.sleep(30)
        if behaviour == "refusing":
            return self.reply(400, "no such token")
        answer = {"output_ids": [5]} if behaviour == "vague" else ANSWER
        first = {"output_ids": [5], "meta_info": ANSWER["meta_info"]}
        events = [first, answer] if behaviour != "silent" else []
        return self.reply(
            200, "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
        )

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        print("attached", self.headers["Authorization"], body.decode(), flush=True)
        self.reply(200, "")

    def do_DELETE(self) -> None:
        print("detached", self.headers["Authorization"], flush=True)
        self.reply(200, "")

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_request(self, *args: object) -> None:
        del args


port, behaviour = int(sys.argv[1]), sys.argv[2]
if behaviour == "dying":
    print("loading\n" * 100 + "RuntimeError: no room for the pool\nbye")
    sys.exit(3)
# A child that a polite end of its parent leaves behind.
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-S", "-c", deaf])
print(f"Load weight begin\nchild {child.pid}\nUvicorn running", flush=True)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
