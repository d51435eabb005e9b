// Rotary positions: halves and interleaved pairs, partial rotation, positions in any order.
#include "suite.hpp"

namespace {

struct RopeParameters {
    uint32_t columns;
    uint32_t rotated;
    uint32_t known_positions;
    uint32_t flags;
    Rows input;
    Rows positions;
};

constexpr uint32_t LANES = 64;
constexpr size_t TABLE_ROWS = 50;

struct Table {
    View cosines, sines;

    explicit Table(size_t pairs)
        : cosines(Format::F32, Arrangement::Contiguous, TABLE_ROWS, pairs),
          sines(Format::F32, Arrangement::Contiguous, TABLE_ROWS, pairs) {
        for (size_t position = 0; position < TABLE_ROWS; position++) {
            for (size_t i = 0; i < pairs; i++) {
                const double angle = double(position) * std::pow(10000.0, -double(i) / double(pairs));
                cosines.set(position, i, std::cos(angle));
                sines.set(position, i, std::sin(angle));
            }
        }
    }
};

void turn(std::vector<Expected> &out, size_t first, size_t second, double c, double s) {
    const double a = out[first].value, b = out[second].value;
    out[first] = {a * c - b * s, std::fabs(a * c) + std::fabs(b * s)};
    out[second] = {b * c + a * s, std::fabs(b * c) + std::fabs(a * s)};
}

void run_case(Suite &suite, Format format, bool interleaved, Arrangement arrangement, size_t rows, size_t columns, size_t rotated,
              uint32_t beyond = 0) {
    const size_t pairs = rotated / 2;
    View x(format, arrangement, rows, columns);
    Table table(pairs);
    // Two heads of one token share a position.
    Rows position_rows;
    position_rows.inner_size = 2;
    position_rows.middle_size = 1000;
    position_rows.middle_stride = 1;
    Buffer positions(4, (rows + 1) / 2);
    for (size_t i = 0; i < positions.count(); i++) positions.set_bits(i, uint32_t((i * 17 + 3) % TABLE_ROWS));
    if (beyond > 0) positions.set_bits(1, beyond);

    std::vector<Expected> expected;
    for (size_t row = 0; row < rows; row++) {
        std::vector<Expected> turned(columns);
        for (size_t i = 0; i < columns; i++) {
            x.set(row, i, suite.normal());
            turned[i] = {x.get(row, i), std::fabs(x.get(row, i))};
        }
        const size_t position = positions.bits(row / 2);
        for (size_t i = 0; position >= TABLE_ROWS && i < rotated; i++) turned[i].value = std::nan("");
        for (size_t i = 0; position < TABLE_ROWS && i < pairs; i++) {
            const size_t first = interleaved ? 2 * i : i;
            turn(turned, first, interleaved ? first + 1 : i + pairs, table.cosines.get(position, i), table.sines.get(position, i));
        }
        expected.insert(expected.end(), turned.begin(), turned.end());
    }
    Case c(suite, "rope", format,
           std::string(interleaved ? "interleaved " : "halves ") + std::to_string(rows) + "x" + std::to_string(columns) +
               " rotated " + std::to_string(rotated) + " " + name(arrangement));
    const bool aligned = x.aligned() && output_aligned(rows, columns) && pairs % 4 == 0;
    RopeParameters p{uint32_t(columns), uint32_t(rotated), uint32_t(TABLE_ROWS), (aligned ? ALIGNED : 0u) | (interleaved ? INTERLEAVED : 0u),
                     x.rows, position_rows};
    c.input(0, x);
    c.input(1, table.cosines);
    c.input(2, table.sines);
    c.input(3, positions);
    Buffer &out = c.output(4, rows * columns);
    c.parameters(5, p);
    const uint32_t lanes = (pairs + 3) / 4 + (columns - rotated + 3) / 4;
    if (c.run((lanes + LANES - 1) / LANES, rows, LANES)) c.compare(out, expected);
}

}  // namespace

void rope_cases(Suite &suite) {
    const std::pair<size_t, size_t> widths[] = {{2, 2}, {6, 4}, {16, 16}, {24, 8}, {64, 64}, {64, 32}, {80, 32},
                                                {96, 96}, {127, 50}, {128, 128}, {256, 64}, {600, 600}};
    for (Format format : ALL_FORMATS) {
        for (bool interleaved : {false, true}) {
            for (const auto &[columns, rotated] : widths) {
                for (Arrangement a : {Arrangement::Contiguous, Arrangement::PaddedOdd, Arrangement::PaddedAligned, Arrangement::Transposed}) {
                    run_case(suite, format, interleaved, a, 7, columns, rotated);
                }
            }
            run_case(suite, format, interleaved, Arrangement::Contiguous, 0, 64, 64);
            run_case(suite, format, interleaved, Arrangement::Contiguous, 1, 64, 64);
            for (uint32_t beyond : {uint32_t(TABLE_ROWS), 0xffffffffu}) {
                run_case(suite, format, interleaved, Arrangement::Contiguous, 7, 80, 32, beyond);
            }
        }
    }
}
