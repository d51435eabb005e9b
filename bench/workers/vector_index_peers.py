"""Writes vectors and times what others need to find the nearest of them.

usage: vector_index_peers.py DIRECTORY ROWS DIMENSION QUERIES
"""

import json
import sys
import time

import faiss
import numpy

NEAREST = 10


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


def main():
    directory, (rows, dimension, queries) = sys.argv[1], map(int, sys.argv[2:5])
    generator = numpy.random.default_rng(0)
    vectors = generator.standard_normal((rows + queries, dimension), dtype=numpy.float32)
    vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[:rows].tofile(directory + "/rows")
    vectors[rows:].tofile(directory + "/queries")
    peers = {"numpy": by_numpy, "faiss flat": by_faiss}
    print(json.dumps({name: timed(peer(vectors[:rows]), vectors[rows:]) for name, peer in peers.items()}))


main()
