// The scans of layers that keep states: tokens one after the other, for all sequences of a step in one launch. States lie
// in slots, and a table says which sequence has which. Every number is a fixed chain of operations of its own column, so
// that it does not depend on how many rows are read at once, nor on what else is in the batch.

struct ScanParameters {
    uint inputs;        // the width of rows, and of what comes of them
    uint outputs;
    uint state;         // where the scan's numbers begin in a slot, and the numbers of a slot
    uint slot;
    uint trail;         // the same of rows that were read before
    uint trail_slot;
    uint columns;       // whose states lie one after the other, as the CPU has them
    uint count;         // of heads, or of channels
    uint size;          // of a head's values; of a convolution its taps
    uint tasks;         // of a sequence
    uint part;          // rows of a convolution that a lane makes
    uint activation;
    float least;        // bounds of time steps
    float most;
};

constant constexpr uint TABLE_WORDS = 12;
constant constexpr uint NO_RECORD = 0xffffffff;
constant constexpr uint MOST_MARKS = 2;
constant constexpr uint HEAD_WORDS = 6;
constant constexpr uint HEAD_NUMBERS = 3;
constant constexpr uint SCAN_LANES = 128;

// As `Rule` in Rust.
constant constexpr uint PLAIN = 0;
constant constexpr uint STEPS = 1;
constant constexpr uint ONE_FACTOR = 2;
constant constexpr uint FACTOR_EACH = 3;
constant constexpr uint EARLIER = 4;
constant constexpr uint REPLACE = 5;

// What a kernel gets.
struct ScanBuffers {
    device const float *inputs;
    device const uint *words;
    device const float *numbers;
    device float *states;
    device float *trails;
    device const uint *table;
    device float *out;
};

#define SCAN_ARGUMENTS                                          \
    device const float *inputs  [[buffer(0)]],                  \
    device const uint *words    [[buffer(1)]],                  \
    device const float *numbers [[buffer(2)]],                  \
    device float *states        [[buffer(3)]],                  \
    device float *trails        [[buffer(4)]],                  \
    device const uint *table    [[buffer(5)]],                  \
    device float *out           [[buffer(6)]],                  \
    constant ScanParameters &p  [[buffer(7)]],                  \
    uint2 group                 [[threadgroup_position_in_grid]], \
    uint index                  [[thread_index_in_threadgroup]],  \
    uint lane                   [[thread_index_in_simdgroup]],    \
    uint simdgroup              [[simdgroup_index_in_threadgroup]]
#define SCAN_STRUCT { inputs, words, numbers, states, trails, table, out }

// What a step does with one sequence.
struct Sequence {
    uint first;
    uint rows;
    uint again;
    uint record;
    uint marks;
    uint mark_rows[MOST_MARKS];
    device float *copies[MOST_MARKS];
    device float *state;
    device float *trail;
    device const float *inputs;
    uint width;

    uint total() const { return again + rows; }
    // Those that are read again come first.
    device const float *row(uint r) const {
        return r < again ? trail + ulong(r) * width : inputs + ulong(first + r - again) * width;
    }
};

static inline void find_sequence(
    thread Sequence &s, thread const ScanBuffers &b, constant ScanParameters &p, uint number
) {
    device const uint *words = b.table + number * TABLE_WORDS;
    s.first = words[0];
    s.rows = words[1];
    s.again = words[2];
    s.record = words[5];
    s.marks = words[6];
    s.state = b.states + ulong(words[3]) * p.slot + p.state;
    s.trail = b.trails + ulong(words[4]) * p.trail_slot + p.trail;
    for (uint m = 0; m < MOST_MARKS; m++) {
        s.mark_rows[m] = s.again + words[7 + 2 * m];
        s.copies[m] = b.states + ulong(words[8 + 2 * m]) * p.slot + p.state;
    }
    s.inputs = b.inputs;
    s.width = p.inputs;
}

// Notes the rows of a sequence, by the lanes of one threadgroup.
static inline void record_rows(thread const Sequence &s, uint index) {
    if (s.record == NO_RECORD) {
        return;
    }
    device const float *from = s.inputs + ulong(s.first) * s.width;
    device float *to = s.trail + ulong(s.record) * s.width;
    for (uint i = index; i < s.rows * s.width; i += SCAN_LANES) {
        to[i] = from[i];
    }
}

// Where the numbers of a column begin in a state, and how far they are apart.
static inline uint state_of(uint column, uint kept, constant ScanParameters &p) {
    return column / p.columns * kept * p.columns + column % p.columns;
}

// Sums over the lanes that share a column, in each of them.
template <uint COLUMNS>
static inline float shared_sum(float v) {
    #pragma clang loop unroll(full)
    for (uint step = COLUMNS; step < 32; step *= 2) {
        v += simd_shuffle_xor(v, ushort(step));
    }
    return v;
}

// A simdgroup has 32 / GROUPS columns of a head, and each of its lanes every GROUPS-th part of a column's KEYS numbers.
template <uint RULE, uint KEYS, uint GROUPS>
static inline void scan_matrix(
    thread const ScanBuffers &b, constant ScanParameters &p, uint2 group, uint index, uint lane, uint simdgroup
) {
    constexpr uint COLUMNS = 32 / GROUPS;
    constexpr uint HELD = (KEYS + GROUPS - 1) / GROUPS;
    Sequence s;
    find_sequence(s, b, p, group.y);
    if (group.x == 0) {
        record_rows(s, index);
    }
    const uint task = group.x * (SCAN_LANES / 32) + simdgroup;
    if (task >= p.tasks) {
        return;
    }
    const uint of_head = (p.size + COLUMNS - 1) / COLUMNS;
    const uint head = task / of_head;
    const uint column = task % of_head * COLUMNS + lane % COLUMNS;
    const bool own = column < p.size;
    const uint first = lane / COLUMNS * HELD;
    const uint count = first < KEYS ? min(HELD, KEYS - first) : 0;
    device const uint *places = b.words + head * HEAD_WORDS;
    device const float *numbers = b.numbers + head * HEAD_NUMBERS;
    const uint state = state_of(head * p.size + (own ? column : 0), KEYS, p) + first * p.columns;
    float held[HELD];
    #pragma clang loop unroll(full)
    for (uint i = 0; i < HELD; i++) {
        held[i] = own && i < count ? s.state[state + i * p.columns] : 0.0f;
    }
    uint mark = 0;
    for (uint r = 0; r <= s.total(); r++) {
        if (mark < s.marks && r == s.mark_rows[mark]) {
            for (uint i = 0; own && i < count; i++) {
                s.copies[mark][state + i * p.columns] = held[i];
            }
            mark++;
        }
        if (r == s.total()) {
            break;
        }
        device const float *row = s.row(r);
        device const float *query = row + places[0] + first;
        device const float *key = row + places[1] + first;
        device const float *factors = row + places[3] + first;
        device const float *searched = row + places[4] + first;
        device const float *rates = row + places[5] + first;
        const float value = own ? row[places[2] + column] : 0.0f;
        float kept = numbers[0];
        float change = value;
        if (RULE == STEPS) {
            float step = softplus(row[places[3]] + numbers[0]);
            // So that what is no number stays none.
            step = step < p.least ? p.least : step;
            step = step > p.most ? p.most : step;
            kept = exp(step * numbers[1]);
            change = value * step;
        }
        if (RULE == ONE_FACTOR) {
            kept = row[places[3]];
        }
        float replaced = 0.0f;
        if (RULE == ONE_FACTOR || RULE == FACTOR_EACH || RULE == REPLACE) {
            float found = 0.0f;
            #pragma clang loop unroll(full)
            for (uint i = 0; i < HELD; i++) {
                if (i < count) {
                    const float element = RULE == FACTOR_EACH ? held[i] * factors[i] : held[i];
                    found = fma(element, RULE == REPLACE ? searched[i] : key[i], found);
                }
            }
            found = shared_sum<COLUMNS>(found);
            if (RULE == REPLACE) {
                replaced = -found;
            } else {
                change = (value - (RULE == ONE_FACTOR ? found * kept : found)) * row[places[4]];
            }
        }
        float sum = 0.0f;
        #pragma clang loop unroll(full)
        for (uint i = 0; i < HELD; i++) {
            if (i < count) {
                const float before = held[i];
                const bool each = RULE == FACTOR_EACH || RULE == EARLIER || RULE == REPLACE;
                float element = before * (each ? factors[i] : kept);
                if (RULE == REPLACE) {
                    element = fma(searched[i] * rates[i], replaced, element);
                }
                element = fma(key[i], change, element);
                held[i] = element;
                sum = fma(RULE == EARLIER ? before : element, query[i], sum);
            }
        }
        sum = shared_sum<COLUMNS>(sum);
        if (RULE == STEPS) {
            sum = fma(numbers[2], value, sum);
        }
        if (own && lane < COLUMNS && r >= s.again) {
            b.out[ulong(s.first + r - s.again) * p.outputs + head * p.size + column] = sum;
        }
    }
    for (uint i = 0; own && i < count; i++) {
        s.state[state + i * p.columns] = held[i];
    }
}

// A lane has a channel of Mamba, and its KEPT numbers.
template <uint KEPT>
static inline void scan_selective(
    thread const ScanBuffers &b, constant ScanParameters &p, uint2 group, uint index
) {
    Sequence s;
    find_sequence(s, b, p, group.y);
    if (group.x == 0) {
        record_rows(s, index);
    }
    const uint channel = group.x * SCAN_LANES + index;
    if (channel >= p.count) {
        return;
    }
    const uint state = state_of(channel, KEPT, p);
    const float skip = b.numbers[p.count * KEPT + channel];
    float held[KEPT];
    for (uint n = 0; n < KEPT; n++) {
        held[n] = s.state[state + n * p.columns];
    }
    uint mark = 0;
    for (uint r = 0; r <= s.total(); r++) {
        if (mark < s.marks && r == s.mark_rows[mark]) {
            for (uint n = 0; n < KEPT; n++) {
                s.copies[mark][state + n * p.columns] = held[n];
            }
            mark++;
        }
        if (r == s.total()) {
            break;
        }
        device const float *row = s.row(r);
        const float x = row[channel];
        const float step = softplus(row[p.count + channel]);
        const float taken = step * x;
        device const float *into = row + 2 * p.count;
        float sum = skip * x;
        for (uint n = 0; n < KEPT; n++) {
            const float kept = exp(step * b.numbers[state + n * p.columns]);
            held[n] = fma(held[n], kept, taken * into[n]);
            sum = fma(held[n], into[KEPT + n], sum);
        }
        if (r >= s.again) {
            b.out[ulong(s.first + r - s.again) * p.outputs + channel] = sum;
        }
    }
    for (uint n = 0; n < KEPT; n++) {
        s.state[state + n * p.columns] = held[n];
    }
}

// A lane has a recurrent unit.
static inline void scan_rglru(thread const ScanBuffers &b, constant ScanParameters &p, uint2 group, uint index) {
    Sequence s;
    find_sequence(s, b, p, group.y);
    if (group.x == 0) {
        record_rows(s, index);
    }
    const uint channel = group.x * SCAN_LANES + index;
    if (channel >= p.count) {
        return;
    }
    float held = s.state[channel];
    uint mark = 0;
    for (uint r = 0; r <= s.total(); r++) {
        if (mark < s.marks && r == s.mark_rows[mark]) {
            s.copies[mark][channel] = held;
            mark++;
        }
        if (r == s.total()) {
            break;
        }
        device const float *row = s.row(r);
        held = fma(row[p.count + channel], held, row[channel]);
        if (r >= s.again) {
            b.out[ulong(s.first + r - s.again) * p.outputs + channel] = held;
        }
    }
    s.state[channel] = held;
}

// A lane has a channel of RWKV 4: sums of values and of weights, both divided by e to the power of a third number.
static inline void scan_rwkv(thread const ScanBuffers &b, constant ScanParameters &p, uint2 group, uint index) {
    Sequence s;
    find_sequence(s, b, p, group.y);
    if (group.x == 0) {
        record_rows(s, index);
    }
    const uint channel = group.x * SCAN_LANES + index;
    if (channel >= p.count) {
        return;
    }
    const uint state = state_of(channel, 3, p);
    const float bonus = b.numbers[channel];
    const float fading = b.numbers[p.count + channel];
    float held[3];
    for (uint n = 0; n < 3; n++) {
        held[n] = s.state[state + n * p.columns];
    }
    uint mark = 0;
    for (uint r = 0; r <= s.total(); r++) {
        if (mark < s.marks && r == s.mark_rows[mark]) {
            for (uint n = 0; n < 3; n++) {
                s.copies[mark][state + n * p.columns] = held[n];
            }
            mark++;
        }
        if (r == s.total()) {
            break;
        }
        device const float *row = s.row(r);
        const float key = row[channel];
        const float value = row[p.count + channel];
        // A sequence begins without weights, and a state with zeros.
        const float exponent = held[1] > 0.0f ? held[2] : -3.402823466e38f;
        float most = fmax(exponent, key + bonus);
        float past = exp(exponent - most);
        float now = exp(key + bonus - most);
        const float read = fma(past, held[0], now * value) / fma(past, held[1], now);
        if (r >= s.again) {
            b.out[ulong(s.first + r - s.again) * p.outputs + channel] = read;
        }
        most = fmax(exponent + fading, key);
        past = exp(exponent + fading - most);
        now = exp(key - most);
        held[0] = fma(past, held[0], now * value);
        held[1] = fma(past, held[1], now);
        held[2] = most;
    }
    for (uint n = 0; n < 3; n++) {
        s.state[state + n * p.columns] = held[n];
    }
}

// What a convolution reads of a channel, `at` rows after the first, or before it: then it lies in the state.
static inline float convolved(
    thread const Sequence &s, uint channel, int at, device const float *state, uint columns, uint before
) {
    return at < 0 ? state[uint(at + int(before)) * columns] : s.row(uint(at))[channel];
}

// A lane has a channel, and some of its rows. Only the first ones read the state, so that their lane may change it.
static inline void scan_convolution(thread const ScanBuffers &b, constant ScanParameters &p, uint2 group, uint index) {
    Sequence s;
    find_sequence(s, b, p, group.y);
    const uint groups = (p.count + SCAN_LANES - 1) / SCAN_LANES;
    const uint channel = group.x % groups * SCAN_LANES + index;
    const uint start = group.x / groups * p.part;
    if (channel >= p.count || start >= max(s.total(), 1u)) {
        return;
    }
    const uint before = p.size - 1;
    device float *state = s.state + state_of(channel, before, p);
    device const float *weights = b.numbers + state_of(channel, p.size, p);
    const float bias = b.numbers[p.count * p.size + channel];
    for (uint r = start; r < min(start + p.part, s.total()); r++) {
        if (r < s.again) {
            continue;
        }
        float sum = bias;
        for (uint tap = 0; tap < p.size; tap++) {
            const int at = int(r + tap) - int(before);
            sum = fma(convolved(s, channel, at, state, p.columns, before), weights[tap * p.columns], sum);
        }
        b.out[ulong(s.first + r - s.again) * p.outputs + channel] = activated(sum, p.activation);
        if (s.record != NO_RECORD) {
            s.trail[ulong(s.record + r - s.again) * s.width + channel] = s.row(r)[channel];
        }
    }
    if (start > 0) {
        return;
    }
    for (uint m = 0; m < s.marks; m++) {
        device float *copy = s.copies[m] + state_of(channel, before, p);
        for (uint i = 0; i < before; i++) {
            const int at = int(s.mark_rows[m] + i) - int(before);
            copy[i * p.columns] = convolved(s, channel, at, state, p.columns, before);
        }
    }
    for (uint i = 0; i < before; i++) {
        const int at = int(s.total() + i) - int(before);
        state[i * p.columns] = convolved(s, channel, at, state, p.columns, before);
    }
}

kernel void scan_rglru_f32(SCAN_ARGUMENTS) {
    const ScanBuffers b = SCAN_STRUCT;
    scan_rglru(b, p, group, index);
}

kernel void scan_rwkv_f32(SCAN_ARGUMENTS) {
    const ScanBuffers b = SCAN_STRUCT;
    scan_rwkv(b, p, group, index);
}

kernel void scan_convolution_f32(SCAN_ARGUMENTS) {
    const ScanBuffers b = SCAN_STRUCT;
    scan_convolution(b, p, group, index);
}

// Compiled for what a model has.
#define MATRIX_KERNEL(RULE, KEYS, GROUPS)                                       \
kernel void scan_matrix_f32(SCAN_ARGUMENTS) {                                   \
    const ScanBuffers b = SCAN_STRUCT;                                          \
    scan_matrix<RULE, KEYS, GROUPS>(b, p, group, index, lane, simdgroup);       \
}
#define SELECTIVE_KERNEL(KEPT)                                                  \
kernel void scan_selective_f32(SCAN_ARGUMENTS) {                                \
    const ScanBuffers b = SCAN_STRUCT;                                          \
    scan_selective<KEPT>(b, p, group, index);                                   \
}
