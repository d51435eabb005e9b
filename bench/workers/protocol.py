"""The conversation between `rake bench` and one of its Python workers.

A request is one line of JSON on the standard input, a reply one line on the
standard output. Whatever a library prints goes to the standard error instead.
"""

import base64
import json
import os
import resource
import statistics
import sys
import time
import traceback


class Worker:
    """Answers requests until the input ends; a subclass loads models and runs tasks."""

    def __init__(self, started, threads):
        self.threads = threads
        self.import_seconds = time.perf_counter() - started
        self.models = {}
        self.inputs = {}

    def versions(self):
        raise NotImplementedError

    def load_model(self, kind, path, dtype):
        raise NotImplementedError

    def run_task(self, model, task, data):
        """Returns the result, or (result, seconds) where only a part of the work counts."""
        raise NotImplementedError

    def encode_result(self, task, result):
        return result

    def prepare(self, model, task, data):
        """What a task must not pay for, such as forgetting the run before."""

    def serve(self):
        channel = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                reply = getattr(self, "answer_" + request["op"])(request)
            except Exception as error:  # the driver reports it beside the case
                traceback.print_exc()
                reply = {"error": f"{type(error).__name__}: {error}"}
            channel.write(json.dumps(reply) + "\n")
            channel.flush()

    def answer_hello(self, _request):
        return {"versions": self.versions(), "import_seconds": self.import_seconds}

    def answer_load(self, request):
        key = request["key"]
        started = time.perf_counter()
        if key not in self.models:
            self.models[key] = self.load_model(request["kind"], request["path"], request.get("dtype"))
        return {"seconds": time.perf_counter() - started}

    def answer_run(self, request):
        model = self.models[request["key"]]
        data = self.read_input(request["input"])
        task = request["task"]
        seconds = []
        for _ in range(request["repeat"]):
            self.prepare(model, task, data)
            started = time.perf_counter()
            result = self.run_task(model, task, data)
            seconds.append(time.perf_counter() - started)
            if isinstance(result, tuple):
                result, seconds[-1] = result
        reply = {"seconds": statistics.median(seconds)}
        if request.get("result"):
            reply["result"] = self.encode_result(task, result)
        return reply

    def answer_memory(self, _request):
        return {"peak_bytes": peak_bytes()}

    def read_input(self, path):
        if path not in self.inputs:
            with open(path, encoding="utf-8") as file:
                self.inputs[path] = json.load(file)
        return self.inputs[path]


def peak_bytes():
    """The most memory this process has had resident, without that of the process that started it."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def packed(rows):
    """Vectors as little-endian f32 in base64."""
    return base64.b64encode(rows.astype("<f4").tobytes()).decode("ascii")
