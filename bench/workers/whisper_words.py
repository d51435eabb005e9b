"""When words are spoken, by openai-whisper's tiny.en: python whisper_words.py TINY.EN.PT SAMPLES...

Samples are raw f32 at 16 kHz. One JSON line for every file: [word, start, end] of each word.
"""

import json
import sys

import numpy
import whisper

model = whisper.load_model(sys.argv[1], device="cpu")
# It knows them by the name of what it fetches, not by the file.
model.set_alignment_heads(whisper._ALIGNMENT_HEADS["tiny.en"])
for path in sys.argv[2:]:
    samples = numpy.fromfile(path, numpy.float32)
    found = model.transcribe(samples, language="en", temperature=0.0, word_timestamps=True, fp16=False)
    words = [word for segment in found["segments"] for word in segment["words"]]
    print(json.dumps([[word["word"], float(word["start"]), float(word["end"])] for word in words]), flush=True)
