// Repeatable numbers, made quickly.
#pragma once

#include <cstdint>
#include <utility>

class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }

    double uniform() { return double(next() >> 11) * 0x1p-53; }

    // Four uniform numbers added up: close enough to normal for test data, and bounded.
    double normal(double mean, double deviation) {
        const double sum = uniform() + uniform() + uniform() + uniform() - 2.0;
        return mean + deviation * sum * 1.7320508075688772;
    }

    template <typename Items>
    void shuffle(Items &items) {
        for (size_t i = items.size(); i > 1; i--) {
            std::swap(items[i - 1], items[next() % i]);
        }
    }

private:
    uint64_t state_;
};
