// The scans of layers that keep states, in f32: tokens one after the other, for all sequences of a step in one launch.
// States lie in slots, and a table says which sequence has which. Every number is a fixed chain of operations of its own
// column, so that it does not depend on how many rows are read at once, nor on what else is in the batch.

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
    uint part;          // rows of a convolution that a thread makes
    uint activation;
    float least;        // bounds of time steps
    float most;
};

enum { TABLE_WORDS = 12, MOST_MARKS = 2, HEAD_WORDS = 6, HEAD_NUMBERS = 3, SCAN_THREADS = 128 };
#define NO_RECORD 0xffffffffu

// In the order of `Rule` in Rust.
enum { PLAIN, STEPS, ONE_FACTOR, FACTOR_EACH, EARLIER, REPLACE };

struct ScanBuffers {
    const float *inputs;
    const uint *words;
    const float *numbers;
    float *states;
    float *trails;
    const uint *table;
    float *out;
};

#define SCAN_KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS) NAME(const ScanBuffers b, const ScanParameters p)

// What a step does with one sequence.
struct Sequence {
    uint first, rows, again, record, marks;
    uint mark_rows[MOST_MARKS];
    float *copies[MOST_MARKS];
    float *state;
    float *trail;
    const float *inputs;
    uint width;

    // What kernels before have written is read from here on.
    __device__ Sequence(const ScanBuffers &b, const ScanParameters &p, uint number) {
        let_next_begin();
        await_previous();
        const uint *words = b.table + number * TABLE_WORDS;
        first = words[0];
        rows = words[1];
        again = words[2];
        state = b.states + ulong(words[3]) * p.slot + p.state;
        trail = b.trails + ulong(words[4]) * p.trail_slot + p.trail;
        record = words[5];
        marks = words[6];
        for (int m = 0; m < MOST_MARKS; m++) {
            mark_rows[m] = again + words[7 + 2 * m];
            copies[m] = b.states + ulong(words[8 + 2 * m]) * p.slot + p.state;
        }
        inputs = b.inputs;
        width = p.inputs;
    }
    __device__ uint total() const { return again + rows; }
    // Those that are read again come first.
    __device__ const float *row(uint r) const {
        return r < again ? trail + ulong(r) * width : inputs + ulong(first + r - again) * width;
    }
    // Notes the rows, by all thread blocks of the sequence.
    __device__ void record_rows() const {
        if (record == NO_RECORD) {
            return;
        }
        const float *from = inputs + ulong(first) * width;
        float *to = trail + ulong(record) * width;
        for (uint i = blockIdx.x * SCAN_THREADS + threadIdx.x; i < rows * width; i += gridDim.x * SCAN_THREADS) {
            to[i] = from[i];
        }
    }
};

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Where the numbers of a column begin in a state.
__device__ __forceinline__ uint state_of(uint column, uint kept, const ScanParameters &p) {
    return column / p.columns * kept * p.columns + column % p.columns;
}

#ifdef KEYS
// Sums over the threads that share a column, in each of them.
template <int COLUMNS>
__device__ __forceinline__ float shared_sum(float v) {
    #pragma unroll
    for (int step = COLUMNS; step < 32; step *= 2) {
        v += __shfl_xor_sync(0xffffffffu, v, step);
    }
    return v;
}

// Numbers of a row, four at a time where they may be.
template <int HELD>
__device__ __forceinline__ void read(float (&to)[HELD], const float *from, int count) {
    if (HELD % 4 == 0 && count == HELD && ulong(from) % 16 == 0) {
        #pragma unroll
        for (int i = 0; i < HELD / 4; i++) {
            const float4 four = ((const float4 *)from)[i];
            to[4 * i] = four.x;
            to[4 * i + 1] = four.y;
            to[4 * i + 2] = four.z;
            to[4 * i + 3] = four.w;
        }
    } else {
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            to[i] = i < count ? from[i] : 0.0f;
        }
    }
}

#define COLUMNS (32 / GROUPS)
#define HELD ((KEYS + GROUPS - 1) / GROUPS)
#define EACH (RULE == FACTOR_EACH || RULE == EARLIER || RULE == REPLACE)

// What a thread reads of a row.
struct Read {
    float key[HELD], query[HELD], factors[EACH ? HELD : 1], searched[RULE == REPLACE ? HELD : 1],
        rates[RULE == REPLACE ? HELD : 1];
    float value, third, fourth;

    __device__ __forceinline__ void take(const float *row, const uint (&places)[HEAD_WORDS], uint column, bool own, int first, int count) {
        read(key, row + places[1] + first, count);
        read(query, row + places[0] + first, count);
        if constexpr (EACH) { read(factors, row + places[3] + first, count); }
        if constexpr (RULE == REPLACE) {
            read(searched, row + places[4] + first, count);
            read(rates, row + places[5] + first, count);
        }
        value = own ? row[places[2] + column] : 0.0f;
        if constexpr (RULE == STEPS || RULE == ONE_FACTOR) { third = row[places[3]]; }
        if constexpr (RULE == ONE_FACTOR || RULE == FACTOR_EACH) { fourth = row[places[4]]; }
    }
};

// A warp has 32 / GROUPS columns of a head, and each of its threads one of GROUPS parts of a column's KEYS numbers. Of many
// rows, each is read while the one before it is computed: AHEAD.
SCAN_KERNEL(scan_matrix) {
    const Sequence s(b, p, blockIdx.y);
    s.record_rows();
    const uint task = blockIdx.x * (SCAN_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (task >= p.tasks) {
        return;
    }
    const uint of_head = (p.size + COLUMNS - 1) / COLUMNS;
    const uint head = task / of_head;
    const uint column = task % of_head * COLUMNS + lane % COLUMNS;
    const bool own = column < p.size;
    const int first = int(lane) / COLUMNS * HELD;
    const int count = first < KEYS ? min(HELD, KEYS - first) : 0;
    const uint *words = b.words + head * HEAD_WORDS;
    const uint places[HEAD_WORDS] = {words[0], words[1], words[2], words[3], words[4], words[5]};
    const float *given = b.numbers + head * HEAD_NUMBERS;
    const float numbers[HEAD_NUMBERS] = {given[0], given[1], given[2]};
    const uint state = state_of(head * p.size + (own ? column : 0), KEYS, p) + first * p.columns;
    float held[HELD];
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        held[i] = own && i < count ? s.state[state + i * p.columns] : 0.0f;
    }
#if AHEAD
    Read next = {};
    if (s.total() > 0) { next.take(s.row(0), places, column, own, first, count); }
#endif
    uint mark = 0;
    for (uint r = 0;; r++) {
        if (mark < s.marks && r == s.mark_rows[mark]) {
            float *copy = mark == 0 ? s.copies[0] : s.copies[1];
            #pragma unroll
            for (int i = 0; i < HELD; i++) {
                if (own && i < count) {
                    copy[state + i * p.columns] = held[i];
                }
            }
            mark++;
        }
        if (r == s.total()) {
            break;
        }
#if AHEAD
        const Read now = next;
        if (r + 1 < s.total()) { next.take(s.row(r + 1), places, column, own, first, count); }
#else
        Read now;
        now.take(s.row(r), places, column, own, first, count);
#endif
        const float value = now.value;
        float kept = numbers[0], change = value;
        if constexpr (RULE == STEPS) {
            float step = softplus(now.third + numbers[0]);
            // So that what is no number stays none.
            step = step < p.least ? p.least : step;
            step = step > p.most ? p.most : step;
            kept = expf(step * numbers[1]);
            change = value * step;
        }
        if constexpr (RULE == ONE_FACTOR) {
            kept = now.third;
        }
        float replaced = 0.0f;
        if constexpr (RULE == ONE_FACTOR || RULE == FACTOR_EACH || RULE == REPLACE) {
            // Two sums, since one would wait for itself.
            float found[2] = {0.0f, 0.0f};
            #pragma unroll
            for (int i = 0; i < HELD; i++) {
                const float element = RULE == FACTOR_EACH ? held[i] * now.factors[EACH ? i : 0] : held[i];
                found[i % 2] = fmaf(element, RULE == REPLACE ? now.searched[RULE == REPLACE ? i : 0] : now.key[i], found[i % 2]);
            }
            const float all = shared_sum<COLUMNS>(found[0] + found[1]);
            if constexpr (RULE == REPLACE) {
                replaced = -all;
            } else {
                change = (value - (RULE == ONE_FACTOR ? all * kept : all)) * now.fourth;
            }
        }
        float sums[2] = {0.0f, 0.0f};
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            const float before = held[i];
            float element = before * (EACH ? now.factors[EACH ? i : 0] : kept);
            if constexpr (RULE == REPLACE) {
                element = fmaf(now.searched[i] * now.rates[i], replaced, element);
            }
            element = fmaf(now.key[i], change, element);
            held[i] = i < count ? element : 0.0f;
            sums[i % 2] = fmaf(RULE == EARLIER ? before : element, now.query[i], sums[i % 2]);
        }
        float sum = shared_sum<COLUMNS>(sums[0] + sums[1]);
        if constexpr (RULE == STEPS) {
            sum = fmaf(numbers[2], value, sum);
        }
        if (own && lane < COLUMNS && r >= s.again) {
            b.out[ulong(s.first + r - s.again) * p.outputs + head * p.size + column] = sum;
        }
    }
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (own && i < count) {
            s.state[state + i * p.columns] = held[i];
        }
    }
}
#endif

#ifdef KEPT
// Runs the rows of a sequence through one column of it, which holds `KEPT` numbers.
template <typename Column>
__device__ __forceinline__ void run_column(
    const Sequence &s, const ScanBuffers &b, const ScanParameters &p, uint channel, Column column
) {
    const uint state = state_of(channel, KEPT, p);
    float held[KEPT];
    #pragma unroll
    for (int n = 0; n < KEPT; n++) {
        held[n] = s.state[state + n * p.columns];
    }
    uint mark = 0;
    for (uint r = 0;; r++) {
        if (mark < s.marks && r == s.mark_rows[mark]) {
            float *copy = mark == 0 ? s.copies[0] : s.copies[1];
            #pragma unroll
            for (int n = 0; n < KEPT; n++) {
                copy[state + n * p.columns] = held[n];
            }
            mark++;
        }
        if (r == s.total()) {
            break;
        }
        const float out = column.step(held, s.row(r));
        if (r >= s.again) {
            b.out[ulong(s.first + r - s.again) * p.outputs + channel] = out;
        }
    }
    #pragma unroll
    for (int n = 0; n < KEPT; n++) {
        s.state[state + n * p.columns] = held[n];
    }
}

#define CHANNEL_SCAN(NAME, COLUMN)                                          \
    SCAN_KERNEL(NAME) {                                                     \
        const Sequence s(b, p, blockIdx.y);                                 \
        s.record_rows();                                                    \
        const uint channel = blockIdx.x * SCAN_THREADS + threadIdx.x;       \
        if (channel < p.count) {                                            \
            run_column(s, b, p, channel, COLUMN(b, p, channel));            \
        }                                                                   \
    }

// A channel of Mamba.
struct Selective {
    const float *rates;
    float skip;
    uint channel, count, columns;

    __device__ Selective(const ScanBuffers &b, const ScanParameters &p, uint channel)
        : rates(b.numbers + state_of(channel, KEPT, p)), skip(b.numbers[p.count * KEPT + channel]), channel(channel),
          count(p.count), columns(p.columns) {}
    __device__ float step(float (&held)[KEPT], const float *row) const {
        const float x = row[channel], time = softplus(row[count + channel]);
        const float *into = row + 2 * count;
        float sum = skip * x;
        #pragma unroll
        for (int n = 0; n < KEPT; n++) {
            held[n] = fmaf(held[n], expf(time * rates[n * columns]), time * x * into[n]);
            sum = fmaf(held[n], into[KEPT + n], sum);
        }
        return sum;
    }
};
CHANNEL_SCAN(scan_selective, Selective)

#if KEPT == 1
// A recurrent unit.
struct Unit {
    uint channel, count;

    __device__ Unit(const ScanBuffers &, const ScanParameters &p, uint channel) : channel(channel), count(p.count) {}
    __device__ float step(float (&held)[KEPT], const float *row) const {
        held[0] = fmaf(row[count + channel], held[0], row[channel]);
        return held[0];
    }
};
CHANNEL_SCAN(scan_rglru, Unit)
#endif

#if KEPT == 3
// A channel of RWKV 4: sums of values and of weights, both divided by e to the power of a third number.
struct Rwkv {
    float bonus, fading;
    uint channel, count;

    __device__ Rwkv(const ScanBuffers &b, const ScanParameters &p, uint channel)
        : bonus(b.numbers[channel]), fading(b.numbers[p.count + channel]), channel(channel), count(p.count) {}
    __device__ float step(float (&held)[KEPT], const float *row) const {
        const float key = row[channel], value = row[count + channel];
        // A sequence begins without weights, and a state with zeros.
        const float exponent = held[1] > 0.0f ? held[2] : -3.402823466e38f;
        float most = fmaxf(exponent, key + bonus);
        float past = expf(exponent - most), now = expf(key + bonus - most);
        const float read = fmaf(past, held[0], now * value) / fmaf(past, held[1], now);
        most = fmaxf(exponent + fading, key);
        past = expf(exponent + fading - most);
        now = expf(key - most);
        held[0] = fmaf(past, held[0], now * value);
        held[1] = fmaf(past, held[1], now);
        held[2] = most;
        return read;
    }
};
CHANNEL_SCAN(scan_rwkv, Rwkv)
#endif
#endif

// A thread has a channel, and some of its rows. Only the first ones read the state, so that their thread may change it.
SCAN_KERNEL(scan_convolution) {
    const Sequence s(b, p, blockIdx.y);
    const uint groups = (p.count + SCAN_THREADS - 1) / SCAN_THREADS;
    const uint channel = blockIdx.x % groups * SCAN_THREADS + threadIdx.x;
    const uint start = blockIdx.x / groups * p.part;
    if (channel >= p.count || start >= max(s.total(), 1u)) {
        return;
    }
    const uint before = p.size - 1;
    float *state = s.state + state_of(channel, before, p);
    const float *weights = b.numbers + state_of(channel, p.size, p);
    const float bias = b.numbers[p.count * p.size + channel];
    // So many rows after the first, or before it: then it lies in the state.
    const auto convolved = [&](int at) {
        return at < 0 ? state[uint(at + int(before)) * p.columns] : s.row(uint(at))[channel];
    };
    for (uint r = max(start, s.again); r < min(start + p.part, s.total()); r++) {
        float sum = bias;
        for (uint tap = 0; tap < p.size; tap++) {
            sum = fmaf(convolved(int(r + tap) - int(before)), weights[tap * p.columns], sum);
        }
        b.out[ulong(s.first + r - s.again) * p.outputs + channel] = activation<float>(sum, p.activation);
        if (s.record != NO_RECORD) {
            s.trail[ulong(s.record + r - s.again) * s.width + channel] = s.row(r)[channel];
        }
    }
    if (start > 0) {
        return;
    }
    for (uint m = 0; m < s.marks; m++) {
        float *copy = (m == 0 ? s.copies[0] : s.copies[1]) + state_of(channel, before, p);
        for (uint i = 0; i < before; i++) {
            copy[i * p.columns] = convolved(int(s.mark_rows[m] + i) - int(before));
        }
    }
    for (uint i = 0; i < before; i++) {
        state[i * p.columns] = convolved(int(s.total() + i) - int(before));
    }
}

// What stands around scans: how much states keep, the gates of recurrent units, and vectors of length one.

struct GateParameters {
    uint width;
    uint rule;
    float number;
};

struct UnitParameters {
    uint width;
    uint size;          // of a head
    uint first_heads;   // with the first factor; and those that have a factor at all
    uint heads;
    float first;
    float second;
    float epsilon;
};

__device__ __forceinline__ float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

// The order of rules is that of `Decay` in Rust.
extern "C" __global__ void scan_decays(const float *x, const float *numbers, float *out, const GateParameters p) {
    const uint column = blockIdx.y * blockDim.x + threadIdx.x;
    let_next_begin();
    await_previous();
    if (column >= p.width) {
        return;
    }
    const ulong at = ulong(blockIdx.x) * p.width + column;
    const float given = x[at] + numbers[column], rate = numbers[p.width + column];
    const float exponent = p.rule == 0 ? -rate * softplus(given)
        : p.rule == 1                  ? p.number * logistic(rate * given)
                                       : -rate * expf(given);
    out[at] = expf(exponent);
}

extern "C" __global__ void scan_open(
    const float *given, const float *input, const float *fading, const float *numbers, const uint *begins, float *out,
    const GateParameters p
) {
    const uint column = blockIdx.y * blockDim.x + threadIdx.x, token = blockIdx.x;
    let_next_begin();
    await_previous();
    if (column >= p.width) {
        return;
    }
    const ulong at = ulong(token) * p.width + column;
    const float exponent = logistic(fading[at] + numbers[p.width + column]) * numbers[2 * p.width + column];
    float taken = given[at] * logistic(input[at] + numbers[column]);
    if (begins[token] == 0) {
        taken *= sqrtf(-expm1f(exponent + exponent));
    }
    out[2 * ulong(token) * p.width + column] = taken;
    out[(2 * ulong(token) + 1) * p.width + column] = expf(exponent);
}

// A warp has a head, or as much of the rest.
extern "C" __global__ void scan_units(const float *x, float *out, const UnitParameters p) {
    const uint first = blockIdx.y * p.size, last = min(first + p.size, p.width);
    const float *from = x + ulong(blockIdx.x) * p.width;
    float *to = out + ulong(blockIdx.x) * p.width;
    float factor = 1.0f;
    let_next_begin();
    await_previous();
    if (blockIdx.y < p.heads) {
        float squares = 0.0f;
        for (uint i = first + threadIdx.x; i < last; i += 32) {
            squares = fmaf(from[i], from[i], squares);
        }
        for (int step = 16; step > 0; step /= 2) {
            squares += __shfl_xor_sync(0xffffffffu, squares, step);
        }
        factor = 1.0f / sqrtf(squares + p.epsilon) * (blockIdx.y < p.first_heads ? p.first : p.second);
    }
    for (uint i = first + threadIdx.x; i < last; i += 32) {
        to[i] = from[i] * factor;
    }
}
