"""Writes a GGUF file as another type: quantize.py SOURCE TYPE TARGET, the type being one of llama.cpp's such as Q4_K_M.

What is quantized already is expanded first, so the result tells how fast a
type is, not how good it can be.
"""

import os
import sys

import llama_cpp


def main():
    source, name, target = sys.argv[1:]
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    parameters.allow_requantize = True
    parameters.nthread = os.cpu_count()
    staged = f"{target}.{os.getpid()}"
    status = llama_cpp.llama_model_quantize(source.encode(), staged.encode(), parameters)
    if status != 0:
        sys.exit(f"llama.cpp could not write {source} as {name}: status {status}")
    os.rename(staged, target)


if __name__ == "__main__":
    main()
