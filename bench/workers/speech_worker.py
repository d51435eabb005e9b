"""Transcribes raw f32 samples at 16 kHz: python speech_worker.py faster-whisper|pywhispercpp MODEL TYPE THREADS

Every line of the input names a file; every line of the output has the seconds it took and the text.
"""

import json
import os
import sys
import time

import numpy

library, model, kind, threads = sys.argv[1:]
os.environ["OMP_NUM_THREADS"] = threads

if library == "faster-whisper":
    from faster_whisper import WhisperModel

    loaded = WhisperModel(model, device="cpu", compute_type=kind, cpu_threads=int(threads), local_files_only=True)

    def transcribe(samples):
        segments, _ = loaded.transcribe(samples, language="en", beam_size=1, best_of=1, temperature=0.0)
        return "".join(segment.text for segment in segments)
else:
    from pywhispercpp.model import Model

    loaded = Model(model, n_threads=int(threads), redirect_whispercpp_logs_to=None, language="en", print_progress=False,
                   print_realtime=False, temperature=0.0, temperature_inc=0.0, greedy={"best_of": 1})

    def transcribe(samples):
        return " ".join(segment.text for segment in loaded.transcribe(samples))

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    samples = numpy.fromfile(line.strip(), numpy.float32)
    began = time.perf_counter()
    text = transcribe(samples)
    print(json.dumps({"seconds": time.perf_counter() - began, "text": text}), flush=True)
