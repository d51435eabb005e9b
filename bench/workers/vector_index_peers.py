"""Writes vectors and times what others need to find the nearest of them.

usage: vector_index_peers.py DIRECTORY ROWS DIMENSION QUERIES KIND
"""

import json
import sys
import time

import faiss
import numpy

NEAREST = 10
# Rows of a cluster, and in how many directions rows differ, as with the vectors of texts.
CLUSTER = 100
DIRECTIONS = 32


def timed(search, queries):
    """The middle of the times of single queries, in milliseconds, and what was found."""
    search(queries[0])
    found, times = [], []
    for query in queries:
        began = time.perf_counter()
        found.append([int(row) for row in search(query)])
        times.append((time.perf_counter() - began) * 1000)
    return {"ms": sorted(times)[len(times) // 2], "found": found}


def by_numpy(rows):
    def search(query):
        scores = rows @ query
        best = numpy.argpartition(-scores, NEAREST)[:NEAREST]
        return best[numpy.argsort(-scores[best])]

    return search


def by_faiss(rows):
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    return lambda query: index.search(query[None, :], NEAREST)[1][0]


def by_faiss_graph(rows):
    index = faiss.IndexHNSWFlat(rows.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 128
    index.hnsw.efSearch = 64
    began = time.perf_counter()
    index.add(rows)
    drawn = time.perf_counter() - began
    return (lambda query: index.search(query[None, :], NEAREST)[1][0]), drawn


def random_rows(generator, count, dimension):
    return generator.standard_normal((count, dimension), dtype=numpy.float32)


def clustered_rows(generator, count, dimension):
    directions = random_rows(generator, DIRECTIONS, dimension)
    centers = random_rows(generator, max(count // CLUSTER, 1), DIRECTIONS)
    rows = numpy.empty((count, dimension), dtype=numpy.float32)
    for start in range(0, count, 10_000):
        some = rows[start : start + 10_000]
        places = centers[generator.integers(len(centers), size=len(some))]
        places = places + 0.5 * random_rows(generator, len(some), DIRECTIONS)
        some[:] = places @ directions + 0.3 * random_rows(generator, len(some), dimension)
    return rows


def main():
    directory, kind = sys.argv[1], sys.argv[5]
    rows, dimension, queries = map(int, sys.argv[2:5])
    generator = numpy.random.default_rng(0)
    make = {"random": random_rows, "clustered": clustered_rows}[kind]
    vectors = make(generator, rows + queries, dimension)
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[:rows].tofile(directory + "/rows")
    vectors[rows:].tofile(directory + "/queries")
    peers = {"numpy": by_numpy, "faiss flat": by_faiss}
    results = {name: timed(peer(vectors[:rows]), vectors[rows:]) for name, peer in peers.items()}
    if kind == "clustered":
        search, drawn = by_faiss_graph(vectors[:rows])
        results["faiss HNSW"] = timed(search, vectors[rows:]) | {"drawn": drawn}
    print(json.dumps(results))


main()
