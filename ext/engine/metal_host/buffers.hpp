// Device buffers between two pages nobody may touch, and the strided views that kernels get.
#pragma once

#include "formats.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

// A buffer is filled with 0xff, which is a NaN in every format: elements nobody set poison what reads
// them, and an output that still holds the pattern was not written. It lies against the page after it
// or, placed first, against the page before it.
class Buffer {
public:
    enum class Against { PageAfter, PageBefore };

    Buffer(size_t element_bytes, size_t count) : element_bytes_(element_bytes), count_(count) {
        const size_t bytes = (element_bytes * count + 15) / 16 * 16;
        body_ = (bytes + PAGE - 1) / PAGE * PAGE;
        void *memory = mmap(nullptr, body_ + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || (body_ > 0 && mprotect(at(memory, PAGE), body_, PROT_READ | PROT_WRITE) != 0)) {
            std::perror("mmap");
            std::exit(2);
        }
        region_ = memory;
        if (body_ > 0) {
            std::memset(at(region_, PAGE), 0xff, body_);
        }
        slack_ = body_ - bytes;
    }
    Buffer(const Buffer &) = delete;
    ~Buffer() { munmap(region_, body_ + 2 * PAGE); }

    void *address() const { return at(region_, PAGE + (against_ == Against::PageAfter ? slack_ : 0)); }
    size_t count() const { return count_; }

    uint32_t bits(size_t i) const {
        uint32_t value = 0;
        std::memcpy(&value, element(i), element_bytes_);
        return value;
    }
    void set_bits(size_t i, uint32_t value) { std::memcpy(element(i), &value, element_bytes_); }

    bool untouched(size_t i) const { return bits(i) == (element_bytes_ == 4 ? 0xffffffffu : (1u << 8 * element_bytes_) - 1); }

    // Moves the contents to the other end of the region and poisons what they leave.
    void move_against(Against side) {
        if (side == against_) {
            return;
        }
        const std::vector<char> copy(static_cast<char *>(address()), static_cast<char *>(address()) + element_bytes_ * count_);
        if (body_ > 0) {
            std::memset(at(region_, PAGE), 0xff, body_);
        }
        against_ = side;
        if (!copy.empty()) {
            std::memcpy(address(), copy.data(), copy.size());
        }
    }
    void poison() {
        if (body_ > 0) {
            std::memset(at(region_, PAGE), 0xff, body_);
        }
    }
    // Whether anything outside the elements was written.
    bool strayed() const {
        const auto *all = static_cast<const unsigned char *>(at(region_, PAGE));
        const auto *first = static_cast<const unsigned char *>(address());
        for (const unsigned char *p = all; p < all + body_; p++) {
            if ((p < first || p >= first + element_bytes_ * count_) && *p != 0xff) {
                return true;
            }
        }
        return false;
    }
    void set_bytes(const std::vector<char> &bytes) {
        if (!bytes.empty()) {
            std::memcpy(address(), bytes.data(), bytes.size());
        }
    }
    std::vector<char> bytes() const {
        return {static_cast<char *>(address()), static_cast<char *>(address()) + element_bytes_ * count_};
    }

private:
    static inline const size_t PAGE = size_t(sysconf(_SC_PAGESIZE));
    static void *at(void *base, size_t offset) { return static_cast<char *>(base) + offset; }
    char *element(size_t i) const { return static_cast<char *>(address()) + i * element_bytes_; }

    size_t element_bytes_;
    size_t count_;
    size_t body_ = 0;
    size_t slack_ = 0;
    void *region_ = nullptr;
    Against against_ = Against::PageAfter;
};

// Laid out as in common.metal.
struct Rows {
    uint32_t inner_size = 1;
    uint32_t middle_size = 1;
    uint32_t inner_stride = 0;
    uint32_t middle_stride = 0;
    uint32_t outer_stride = 0;

    // Computed the long way round on purpose, by counting.
    size_t start(size_t row) const {
        size_t inner = 0, middle = 0, outer = 0;
        for (size_t i = 0; i < row; i++) {
            if (++inner == inner_size) {
                inner = 0;
                if (++middle == middle_size) {
                    middle = 0;
                    outer++;
                }
            }
        }
        return outer * outer_stride + middle * middle_stride + inner * inner_stride;
    }
    bool aligned() const { return inner_stride % 4 == 0 && middle_stride % 4 == 0 && outer_stride % 4 == 0; }
};

// How the rows of an input lie in its buffer.
enum class Arrangement {
    Contiguous,
    PaddedOdd,      // rows at an odd distance, behind an odd offset: no vector access
    PaddedAligned,  // rows further apart than they are wide, all of them aligned
    Transposed,     // (outer, middle, inner) stored as (outer, inner, middle)
};

inline const char *name(Arrangement arrangement) {
    static const char *names[] = {"contiguous", "padded-odd", "padded-aligned", "transposed"};
    return names[int(arrangement)];
}

// A tensor of `rows` x `columns` seen through an arrangement.
struct View {
    Format format;
    Rows rows;
    size_t offset = 0;
    size_t row_count;
    size_t columns;
    std::vector<size_t> starts;
    Buffer buffer;

    View(Format f, Arrangement arrangement, size_t row_count, size_t columns)
        : format(f), rows(make_rows(arrangement, row_count, columns)),
          offset(arrangement == Arrangement::PaddedOdd ? 3 : arrangement == Arrangement::PaddedAligned ? 8 : 0),
          row_count(row_count), columns(columns), starts(make_starts(rows, row_count)),
          buffer(traits(f).bytes, row_count == 0 ? 0 : offset + *std::max_element(starts.begin(), starts.end()) + columns) {}

    void set(size_t row, size_t column, double value) { buffer.set_bits(place(row, column), encode(format, value)); }
    double get(size_t row, size_t column) const { return decode(format, buffer.bits(place(row, column))); }
    void *address() const { return static_cast<char *>(buffer.address()) + offset * traits(format).bytes; }
    bool aligned() const { return rows.aligned() && offset % 4 == 0; }
    size_t place(size_t row, size_t column) const { return offset + starts[row] + column; }

private:
    static std::vector<size_t> make_starts(const Rows &rows, size_t count) {
        std::vector<size_t> starts;
        for (size_t row = 0; row < count; row++) {
            starts.push_back(rows.start(row));
        }
        return starts;
    }
    static Rows make_rows(Arrangement arrangement, size_t count, size_t columns) {
        Rows rows;
        const uint32_t width = columns;
        rows.inner_size = std::max<uint32_t>(count, 1);
        switch (arrangement) {
        case Arrangement::Contiguous: rows.inner_stride = width; break;
        case Arrangement::PaddedOdd: rows.inner_stride = width + (width % 2 == 0 ? 5 : 6); break;
        case Arrangement::PaddedAligned: rows.inner_stride = (width + 3) / 4 * 4 + 8; break;
        case Arrangement::Transposed:
            rows.inner_size = 2;
            rows.middle_size = 3;
            rows.inner_stride = 3 * width;
            rows.middle_stride = width;
            rows.outer_stride = 6 * width;
            break;
        }
        return rows;
    }
};
