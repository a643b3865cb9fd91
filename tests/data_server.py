"""A tiny data set for tests, and a server that hands its files out well or badly."""

import gzip
import hashlib
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from mnist_cuda.data.catalogue import DATASETS, DataFile, DatasetInfo
from mnist_cuda.data.dataset import load
from mnist_cuda.data.download import fetch

TRAIN, TEST = 40, 10


def idx(array):
    """The bytes of an idx file that holds a uint8 array."""
    header = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.tobytes()


def tiny_files(seed=5, train=TRAIN, test=TEST):
    """The four uncompressed files of the tiny data set, or of another one, by name."""
    rng = np.random.default_rng(seed)
    files = {}
    for half, count in (("train", train), ("t10k", test)):
        files[f"{half}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (count, 28, 28), np.uint8))
        files[f"{half}-labels-idx1-ubyte"] = idx(rng.integers(0, 10, count, np.uint8))
    return files


RAW = tiny_files()
GZIP = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in RAW.items()}
ARRAYS = b"".join(content[16 if "images" in name else 8 :] for name, content in RAW.items())


def tiny_info(*mirrors, name="mnist"):
    """The catalogue's row of the tiny data set."""
    files = [
        DataFile(f"{raw}.gz", len(packed), hashlib.sha256(packed).hexdigest(), hashlib.sha256(content).hexdigest())
        for (raw, content), packed in zip(RAW.items(), GZIP.values(), strict=True)
    ]
    digest = hashlib.sha256(ARRAYS).hexdigest()
    facts = {"name": name, "summary": "a tiny data set", "counts": (TRAIN, TEST), "digest": digest}
    names = ("train_images", "train_labels", "test_images", "test_labels")
    return DatasetInfo(**facts, **dict(zip(names, files, strict=True)), torchvision="MNIST", mirrors=mirrors)


def write(folder, files):
    """Write files, content by name, into a folder, which is made; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def fields(data):
    """All of a Dataset, but what was asked for and warned of."""
    return data.name, data.source, data.hashes, data.digest, [array.tolist() for array in data.arrays]


class Handler(BaseHTTPRequestHandler):
    """GET /BEHAVIOUR/FILE."""

    def do_GET(self):
        """Answer as the path's first part says; the server records it."""
        behaviour, name = self.path.strip("/").split("/")
        self.server.requests.append((behaviour, name))
        getattr(self, f"answer_{behaviour.replace('-', '_')}")(GZIP[name])

    def log_message(self, *args):
        """Be silent."""

    def begin(self, length, status=200, **headers):
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()

    def answer_good(self, content):
        self.begin(len(content))
        self.wfile.write(content)

    def answer_labelled(self, content):
        self.begin(len(content), Content_Encoding="x-gzip", Content_Type="application/x-gzip")
        self.wfile.write(content)

    def answer_unsized(self, content):
        self.begin(None)
        self.wfile.write(content)

    def answer_halting(self, content):
        self.begin(len(content))
        for first in range(0, len(content), 4096):
            self.wfile.write(content[first : first + 4096])
            self.server.stop.wait(0.02)

    def answer_403(self, content):
        self.send_error(403)

    def answer_404(self, content):
        self.send_error(404)

    def answer_503(self, content):
        self.send_error(503)

    def answer_escapes(self, content):
        self.send_response(418, "\x1b[2Jteapot")
        self.end_headers()

    def answer_page(self, content):
        page = b"<!doctype html><title>Please log in</title>"
        self.begin(len(page), Content_Type="text/html")
        self.wfile.write(page)

    def answer_wrong(self, content):
        self.begin(len(content))
        self.wfile.write(content[:-1] + bytes((content[-1] ^ 1,)))

    def answer_long(self, content):
        self.begin(None)
        self.wfile.write(content + b"x")

    def answer_endless(self, content):
        self.begin(None)
        while not self.server.stop.is_set():
            self.wfile.write(bytes(1 << 16))

    def answer_early(self, content):
        self.begin(len(content))
        self.wfile.write(content[:-7])

    def answer_early_unsized(self, content):
        self.begin(None)
        self.wfile.write(content[:-7])

    def answer_silent(self, content):
        self.server.stop.wait(20)

    def answer_stall(self, content):
        self.begin(len(content))
        self.wfile.write(content[:20])
        self.server.stop.wait(20)

    def answer_drip(self, content):
        self.begin(len(content))
        self.drip(content)

    def answer_drip_header(self, content):
        self.drip(b"HTTP/1.1 200 OK\r\nX-Patience: " + b"x" * 1000)

    def drip(self, content):
        for i in range(len(content)):
            if self.server.stop.wait(0.05):
                return
            self.wfile.write(content[i : i + 1])


class Server(ThreadingHTTPServer):
    """Serves until it is closed; `requests` lists what was asked for as (behaviour, file)."""

    daemon_threads = True
    block_on_close = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []
        self.stop = threading.Event()

    def url(self, behaviour):
        """The mirror that behaves so."""
        return f"http://127.0.0.1:{self.server_address[1]}/{behaviour}/"

    def handle_error(self, request, client_address):
        """A client that gave up is no news."""


@contextmanager
def serve():
    """A running Server."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.stop.set()
            server.shutdown()
            thread.join()


def fetch_from(url):
    """What a process that will be killed runs: fetch the tiny data set."""
    fetch(tiny_info(url))


def fetch_together(barrier, url):
    """What each of several processes runs: fetch the tiny data set when all are ready."""
    barrier.wait()
    fetch(tiny_info(url))


def load_together(barrier, folder, digests):
    """What each of several processes runs: load the tiny data set when all are ready."""
    DATASETS["mnist"] = tiny_info()
    barrier.wait()
    digests.put(load("mnist", data_dir=folder).digest)


def ended(context, count, target, *arguments):
    """The exit codes of so many processes that run `target` at once."""
    processes = [context.Process(target=target, args=arguments) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


class elapsed:
    """Seconds spent in the block: `with elapsed() as t: ...; t.seconds`."""

    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, *exc):
        self.seconds = time.monotonic() - self.start
