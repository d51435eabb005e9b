// Mean over packed sequences and L2 normalization.
#include "suite.hpp"

#include <functional>

namespace {

struct PoolParameters {
    uint32_t columns;
    uint32_t flags;
    uint32_t row_stride;
};

struct L2Parameters {
    uint32_t columns;
    uint32_t flags;
    float epsilon;
    Rows input;
};

constexpr uint32_t POOL_LANES = 256;
constexpr uint32_t POOL_COLUMNS = 128;

using Fill = std::function<double(size_t row, size_t column)>;

void mean_case(Suite &suite, Format format, Arrangement arrangement, const std::vector<uint32_t> &lengths, size_t columns,
               const Fill &fill, const std::string &title) {
    size_t tokens = 0;
    Buffer boundaries(4, lengths.size() + 1);
    boundaries.set_bits(0, 0);
    for (size_t i = 0; i < lengths.size(); i++) {
        tokens += lengths[i];
        boundaries.set_bits(i + 1, uint32_t(tokens));
    }
    View x(format, arrangement, tokens, columns);
    std::vector<Expected> expected;
    for (size_t sequence = 0, first = 0; sequence < lengths.size(); first += lengths[sequence++]) {
        for (size_t i = 0; i < columns; i++) {
            double sum = 0.0, size = 0.0;
            for (size_t token = first; token < first + lengths[sequence]; token++) {
                x.set(token, i, fill(token, i));
                sum += x.get(token, i);
                size += std::fabs(x.get(token, i));
            }
            const double count = std::max<double>(lengths[sequence], 1);
            expected.push_back({sum / count, size / count});
        }
    }
    Case c(suite, "mean_pool", format,
           title + " " + std::to_string(lengths.size()) + " sequences, " + std::to_string(tokens) + "x" + std::to_string(columns) +
               " " + name(arrangement));
    const bool aligned = x.aligned() && output_aligned(lengths.size(), columns);
    PoolParameters p{uint32_t(columns), aligned ? ALIGNED : 0u, x.rows.inner_stride};
    c.input(0, x);
    c.input(1, boundaries);
    Buffer &out = c.output(2, lengths.size() * columns);
    c.parameters(3, p);
    if (c.run((columns + POOL_COLUMNS - 1) / POOL_COLUMNS, uint32_t(lengths.size()), POOL_LANES)) c.compare(out, expected);
}

void l2_case(Suite &suite, Format format, Arrangement arrangement, size_t rows, size_t columns, const Fill &fill,
             const std::string &title, uint32_t lanes = 0) {
    const double epsilon = float(1e-12);
    View x(format, arrangement, rows, columns);
    std::vector<Expected> expected;
    for (size_t row = 0; row < rows; row++) {
        double squares = 0.0;
        for (size_t i = 0; i < columns; i++) {
            x.set(row, i, fill(row, i));
            squares += x.get(row, i) * x.get(row, i);
        }
        const double norm = std::sqrt(squares) < epsilon ? epsilon : std::sqrt(squares);
        for (size_t i = 0; i < columns; i++) expected.push_back({x.get(row, i) / norm, std::fabs(x.get(row, i) / norm)});
    }
    Case c(suite, "l2_normalize", format,
           title + " " + std::to_string(rows) + "x" + std::to_string(columns) + " " + name(arrangement));
    const bool aligned = x.aligned() && output_aligned(rows, columns);
    L2Parameters p{uint32_t(columns), aligned ? ALIGNED : 0u, 1e-12f, x.rows};
    c.input(0, x);
    Buffer &out = c.output(1, rows * columns);
    c.parameters(2, p);
    if (c.run(uint32_t(rows), 1, lanes ? lanes : lanes_for(columns))) c.compare(out, expected);
}

void mean_cases(Suite &suite, Format format) {
    const Fill ordinary = [&suite](size_t, size_t) { return suite.normal(0.1, 1.0); };
    for (Arrangement a : {Arrangement::Contiguous, Arrangement::PaddedOdd, Arrangement::PaddedAligned}) {
        for (size_t columns : {1, 2, 3, 4, 5, 127, 128, 129, 384, 1000}) {
            mean_case(suite, format, a, {3, 1, 0, 17, 8}, columns, ordinary, "shape");
        }
    }
    mean_case(suite, format, Arrangement::Contiguous, {2000}, 130, ordinary, "long");
    mean_case(suite, format, Arrangement::Contiguous, {}, 64, ordinary, "no sequences");
    mean_case(suite, format, Arrangement::Contiguous, {0}, 64, ordinary, "one empty sequence");
    const Fill large = [](size_t token, size_t) { return token % 2 ? 60000.0 : 50000.0; };
    mean_case(suite, format, Arrangement::Contiguous, {40, 3}, 64, large, "sums beyond f16");
    const double infinity = std::numeric_limits<double>::infinity();
    for (double special : {infinity, -infinity, std::nan("")}) {
        const Fill fill = [&suite, special](size_t token, size_t i) { return token == 4 && i == 7 ? special : suite.normal(); };
        mean_case(suite, format, Arrangement::Contiguous, {3, 9, 2}, 64, fill, "special " + std::to_string(special));
    }
}

void l2_cases(Suite &suite, Format format) {
    const Fill ordinary = [&suite](size_t row, size_t) { return suite.normal(0.0, row == 1 ? 200.0 : 1.0); };
    for (Arrangement a : {Arrangement::Contiguous, Arrangement::PaddedOdd, Arrangement::PaddedAligned, Arrangement::Transposed}) {
        for (size_t columns : {1, 3, 4, 33, 128, 384, 1023, 1024, 4100}) l2_case(suite, format, a, 7, columns, ordinary, "shape");
    }
    for (size_t columns : {65535, 65536}) l2_case(suite, format, Arrangement::Contiguous, 1, columns, ordinary, "wide");
    for (uint32_t lanes : {32u, 96u, 1024u}) l2_case(suite, format, Arrangement::Contiguous, 2, 9000, ordinary, "lanes", lanes);
    l2_case(suite, format, Arrangement::Contiguous, 0, 64, ordinary, "no rows");
    l2_case(suite, format, Arrangement::Contiguous, 2, 64, [](size_t, size_t) { return 0.0; }, "zeros");
    const double infinity = std::numeric_limits<double>::infinity();
    for (double special : {infinity, std::nan("")}) {
        const Fill fill = [&suite, special](size_t row, size_t i) { return row == 1 && i == 7 ? special : suite.normal(); };
        l2_case(suite, format, Arrangement::Contiguous, 3, 64, fill, "special " + std::to_string(special));
    }
}

}  // namespace

void pooling_cases(Suite &suite) {
    for (Format format : ALL_FORMATS) {
        mean_cases(suite, format);
        l2_cases(suite, format);
    }
}
