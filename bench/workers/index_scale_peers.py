"""Writes rows, or builds and searches the index of another library over them.

usage: index_scale_peers.py exact|usearch|faiss|hnswlib DIRECTORY ROWS DIMENSION QUERIES
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy

NEAREST, LINKS, EF_CONSTRUCTION, EFS = 10, 16, 128, (64, 128, 256)
# Rows of a cluster, and in how many directions rows differ, as with the vectors of texts.
CLUSTER, DIRECTIONS = 100, 32


def write(directory, count, dimension, queries):
    """Rows and queries of length 1, and the exact nearest of each query."""
    generator = numpy.random.default_rng(1)
    directions = generator.standard_normal((DIRECTIONS, dimension), dtype=numpy.float32)
    centers = generator.standard_normal((-(-count // CLUSTER), DIRECTIONS), dtype=numpy.float32)

    def points(numbers):
        near = centers[numbers] + 0.5 * generator.standard_normal((len(numbers), DIRECTIONS), dtype=numpy.float32)
        rows = near @ directions + 0.3 * generator.standard_normal((len(numbers), dimension), dtype=numpy.float32)
        return rows / numpy.linalg.norm(rows, axis=1, keepdims=True)

    asked = points(generator.integers(0, len(centers), queries))
    scores = numpy.empty((queries, count), dtype=numpy.float32)
    with open(directory / "rows", "wb") as file:
        for start in range(0, count, 50_000):
            numbers = numpy.arange(start, min(start + 50_000, count)) // CLUSTER
            rows = points(numbers).astype(numpy.float32)
            file.write(rows.tobytes())
            scores[:, start:start + len(rows)] = asked @ rows.T
    (directory / "queries").write_bytes(asked.astype(numpy.float32).tobytes())
    return numpy.argsort(-scores, axis=1)[:, :NEAREST].tolist()


def by_usearch(rows, path):
    from usearch.index import Index

    index = Index(ndim=rows.shape[1], metric="cos", dtype="i8", connectivity=LINKS, expansion_add=EF_CONSTRUCTION)
    index.add(numpy.arange(len(rows)), rows)
    index.save(path)
    index = Index.restore(path, view=True)

    def search(query, ef):
        index.expansion_search = ef
        return index.search(query, NEAREST).keys

    return search


def by_faiss(rows, path):
    import faiss

    index = faiss.IndexHNSWSQ(rows.shape[1], faiss.ScalarQuantizer.QT_8bit, LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    index.train(rows[:100_000])
    index.add(rows)
    faiss.write_index(index, path)
    index = faiss.read_index(path)

    def search(query, ef):
        index.hnsw.efSearch = ef
        return index.search(query[None, :], NEAREST)[1][0]

    return search


def by_hnswlib(rows, path):
    import hnswlib

    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(max_elements=len(rows), ef_construction=EF_CONSTRUCTION, M=LINKS)
    index.add_items(rows)
    index.save_index(path)
    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.load_index(path)
    index.set_num_threads(1)

    def search(query, ef):
        index.set_ef(ef)
        return index.knn_query(query[None, :], NEAREST)[0][0]

    return search


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssFile")))


def middle(times):
    return sorted(times)[len(times) // 2] * 1000


def measured(name, directory, count, dimension):
    rows = numpy.memmap(directory / "rows", dtype=numpy.float32, mode="r", shape=(count, dimension))
    queries = numpy.fromfile(directory / "queries", dtype=numpy.float32).reshape(-1, dimension)
    path = str(directory / name)
    began, began_busy = time.perf_counter(), time.process_time()
    search = {"usearch": by_usearch, "faiss": by_faiss, "hnswlib": by_hnswlib}[name](rows, path)
    built, busy = time.perf_counter() - began, time.process_time() - began_busy
    del rows
    searched = {}
    for ef in EFS:
        search(queries[0], ef)
        times, busy_times, found = [], [], []
        for query in queries:
            start, start_busy = time.perf_counter(), time.process_time()
            nearest = search(query, ef)
            times.append(time.perf_counter() - start)
            busy_times.append(time.process_time() - start_busy)
            found.append([int(row) for row in nearest])
        searched[ef] = {"ms": middle(times), "busy_ms": middle(busy_times), "found": found}
    return {"name": name, "built": built, "busy": busy, "file": os.path.getsize(path), "memory": resident(), "searched": searched}


def main(name, directory, count, dimension, queries):
    directory, count, dimension, queries = Path(directory), int(count), int(dimension), int(queries)
    if name == "exact":
        print(json.dumps({"found": write(directory, count, dimension, queries)}))
    else:
        print(json.dumps(measured(name, directory, count, dimension)))


if __name__ == "__main__":
    main(*sys.argv[1:])
