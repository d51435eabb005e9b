"""openvino with Hugging Face tokenizers: embeddings. Single texts run for latency, many side by side for throughput."""

import os
import time

THREADS = int(os.environ["BENCH_THREADS"])
STARTED = time.perf_counter()

import openvino

import encoders
import protocol


class Model(encoders.Encoder):
    def __init__(self, path):
        super().__init__(path)
        core = openvino.Core()
        graph = core.read_model(os.path.join(path, "model.xml"))

        def compiled(streams):
            return core.compile_model(
                graph,
                "CPU",
                {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": streams, "INFERENCE_PRECISION_HINT": "f32"},
            )

        self.single, self.many = compiled(1), compiled(THREADS)
        self.request = self.single.create_infer_request()

    def run_each(self, batches):
        batches = list(batches)
        if len(batches) == 1:
            places, inputs = batches[0]
            yield places, inputs["attention_mask"], self.request.infer(inputs)[0]
            return
        outputs = [None] * len(batches)

        def keep(request, number):
            outputs[number] = request.get_output_tensor(0).data.copy()

        queue = openvino.AsyncInferQueue(self.many, THREADS)
        queue.set_callback(keep)
        for number, (_, inputs) in enumerate(batches):
            queue.start_async(inputs, number)
        queue.wait_all()
        for (places, inputs), output in zip(batches, outputs):
            yield places, inputs["attention_mask"], output


class OpenvinoWorker(protocol.Worker):
    def __init__(self):
        super().__init__(STARTED, THREADS)

    def versions(self):
        return {"openvino": openvino.__version__.split("-")[0]}

    def load_model(self, kind, path, dtype):
        return Model(path)

    def run_task(self, model, task, data):
        return model.embed(data["texts"])

    def encode_result(self, task, result):
        return protocol.packed(result)


if __name__ == "__main__":
    OpenvinoWorker().serve()
