// Attention over packed sequences: softmax(scale * q kT + bias) v for each sequence and head, in one pass over the keys
// with a running maximum and sum. A query that sees no key gives zeros; what it does not see is no part of any sum. A
// launcher appends ATTENTION_KERNELS for the widths it asks for, counted in blocks of eight elements.
//
// `attention_tiles` is for many queries: each simdgroup has eight of one head, and multiplies matrices of 8 x 8.
// `attention_rows` is for few: a threadgroup has one query of the heads that share their keys, which are then read once;
// where there are many keys, several share them, and `attention_join` joins what they make.

struct AttentionParameters {
    uint width;      // of queries and keys
    uint value_width;
    uint heads;
    uint group;      // query heads to a key head
    uint sequences;
    uint q_token;    // strides in elements
    uint q_head;
    uint k_token;
    uint k_head;
    uint v_token;
    uint v_head;
    int left;        // keys before a query's position, and after it, that it sees
    int right;
    uint bias;
    int zero;        // where distance 0 stands in a table
    int query_distances;
    int key_distances;
    uint query_width; // buckets to a token and head
    uint key_width;
    uint splits;     // threadgroups that share the keys of a query
    int split_keys;  // of each
    float scale;
    float soft_cap;
    uint flags;
};

// More bits of `flags`.
constant constexpr uint HAS_PLACES = 512;
constant constexpr uint HAS_QUERY_SCORES = 1024;
constant constexpr uint HAS_KEY_SCORES = 2048;
constant constexpr uint IS_CAPPED = 4096;
constant constexpr uint FIRST_ALIGNED = 8192; // the first query stands at the first key, not the last at the last

// What is added to a score: nothing, or as `AttentionBias` says.
constant constexpr uint ALIBI = 1;
constant constexpr uint RELATIVE = 2;
constant constexpr uint DISENTANGLED = 3;

template <typename T>
struct AttentionInputs {
    device const T *q;
    device const T *k;
    device const T *v;
    device const uint *places;          // the rows of k and v that keys lie in
    constant uint *query_boundaries;
    constant uint *key_boundaries;
    constant float *slopes;             // of ALIBI, by head
    device const float *table;          // of RELATIVE, [heads, distances]
    device const T *from_query;         // of DISENTANGLED, [tokens, heads, buckets]
    device const T *from_key;
    constant uint *query_buckets;       // by distance
    constant uint *key_buckets;
    device T *out;
    device float *parts;                // [tokens, heads, splits]: maximum, sum and sums of values of each
};

struct Sequence {
    int first_query;
    int queries;
    int first_key;
    int keys;
    int shift; // from a query's number to its position among the keys
};

template <typename T>
static inline void read_sequence(
    thread Sequence &s, thread const AttentionInputs<T> &a, constant AttentionParameters &p, uint index
) {
    s.first_query = int(a.query_boundaries[index]);
    s.queries = int(a.query_boundaries[index + 1]) - s.first_query;
    s.first_key = int(a.key_boundaries[index]);
    s.keys = int(a.key_boundaries[index + 1]) - s.first_key;
    s.shift = p.flags & FIRST_ALIGNED ? 0 : s.keys - s.queries;
}

// The keys from `low` to before `high` are those that queries at the positions `first` to `last` see.
static inline int low_of(constant AttentionParameters &p, int first) { return max(0, first - p.left); }
static inline int high_of(constant AttentionParameters &p, thread const Sequence &s, int last) {
    return min(s.keys, last + p.right + 1);
}

static inline int column_of(int distance, int zero, int count) { return min(max(distance + zero, 0), count - 1); }

// The score of a product of a query and a key, which are counted over all sequences.
template <typename T>
static inline float score_of(
    thread const AttentionInputs<T> &a, constant AttentionParameters &p, float product, uint head, int query, int key,
    int distance
) {
    float score = product * p.scale;
    if (p.flags & IS_CAPPED) {
        score = p.soft_cap * tanh(score / p.soft_cap);
    }
    if (p.bias == ALIBI) {
        score -= a.slopes[head] * fabs(float(distance));
    }
    if (p.bias == RELATIVE) {
        score += a.table[head * uint(p.query_distances) + uint(column_of(distance, p.zero, p.query_distances))];
    }
    if (p.bias == DISENTANGLED) {
        if (p.flags & HAS_QUERY_SCORES) {
            const uint bucket = a.query_buckets[column_of(distance, p.zero, p.query_distances)];
            score += float(a.from_query[(ulong(query) * p.heads + head) * p.query_width + bucket]);
        }
        if (p.flags & HAS_KEY_SCORES) {
            const uint bucket = a.key_buckets[column_of(distance, p.zero, p.key_distances)];
            score += float(a.from_key[(ulong(key) * p.heads + head) * p.key_width + bucket]);
        }
    }
    return score;
}

// What exponents are counted from: where nothing was seen yet there is no highest one.
static inline float base_of(float highest) { return highest == -INFINITY ? 0.0f : highest; }

template <typename T>
static inline ulong row_of_key(thread const AttentionInputs<T> &a, constant AttentionParameters &p, int key) {
    return p.flags & HAS_PLACES ? ulong(a.places[key]) : ulong(key);
}

// Many queries

// The keys of a step, so that these, their values and the scores of eight simdgroups fit 32 KB; rows are four elements
// longer than they need be, to begin in different banks.
#define TILE_KEYS(BLOCKS) ((BLOCKS) <= 8 ? 32 : (BLOCKS) <= 16 ? 16 : 8)
#define TILE_STRIDE(BLOCKS) (8 * (BLOCKS) + 4)
constant constexpr uint MOST_TILE_SIMDGROUPS = 8;
// With more blocks, a lane's registers do not hold queries beside what it adds up: they are read again at each step.
constant constexpr uint MOST_HELD_BLOCKS = 16;

template <typename T, uint BLOCKS, uint KEYS>
static inline void load_tile(
    thread const AttentionInputs<T> &a, constant AttentionParameters &p, device const T *from, uint token_stride,
    uint width, int first_key, int count, threadgroup float *tile, uint index, uint lanes
) {
    for (uint i = index; i < KEYS * 2 * BLOCKS; i += lanes) {
        const uint row = i / (2 * BLOCKS);
        const uint column = 4 * (i % (2 * BLOCKS));
        float4 v = splat(0.0f);
        if (int(row) < count) {
            const ulong at = row_of_key(a, p, first_key + int(row));
            v = four_of(from + at * token_stride, column, width, (p.flags & ALIGNED) != 0);
        }
        threadgroup float *to = tile + TILE_STRIDE(BLOCKS) * row + column;
        to[0] = v.x;
        to[1] = v.y;
        to[2] = v.z;
        to[3] = v.w;
    }
}

// The two elements of an 8 x 8 matrix that a lane holds.
struct Held2 {
    uint rows[2];
    uint columns[2];
};

template <typename T>
static inline void read_query(
    thread simdgroup_float8x8 &to, device const T *from, constant AttentionParameters &p, thread const Held2 &held,
    int first, int count, uint block
) {
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 2; i++) {
        const int row = first + int(held.rows[i]);
        const uint column = 8 * block + held.columns[i];
        const bool there = row < count && column < p.width;
        to.thread_elements()[i] = there ? float(from[ulong(row) * p.q_token + column]) : 0.0f;
    }
}

// The grid is (heads * tiles of queries, sequences).
template <typename T, uint BLOCKS, uint VALUE_BLOCKS, uint KEYS>
static inline void attend_tile(
    thread const AttentionInputs<T> &a, constant AttentionParameters &p, threadgroup float *keys,
    threadgroup float *values, threadgroup float *scores, threadgroup float *factors, uint2 group, uint index,
    uint lane, uint simdgroup, uint simdgroups
) {
    Sequence s;
    read_sequence(s, a, p, group.y);
    const uint head = group.x % p.heads;
    const uint key_head = head / p.group;
    const int first = int(group.x / p.heads * 8 * simdgroups);
    if (first >= s.queries) {
        return;
    }
    const int mine = first + int(8 * simdgroup);
    const uint lanes = 32 * simdgroups;
    threadgroup float *own = scores + simdgroup * 8 * KEYS;
    threadgroup float *own_factors = factors + 8 * simdgroup;

    // Metal does not say which elements a lane holds; a matrix of numbers does.
    own[lane] = float(lane);
    own[lane + 32] = float(lane + 32);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 numbers;
    simdgroup_load(numbers, own, 8);
    Held2 held;
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 2; i++) {
        const uint number = uint(numbers.thread_elements()[i]);
        held.rows[i] = number / 8;
        held.columns[i] = number % 8;
    }

    device const T *q = a.q + ulong(s.first_query) * p.q_token + ulong(head) * p.q_head;
    const bool holds = BLOCKS <= MOST_HELD_BLOCKS;
    simdgroup_float8x8 query[holds ? BLOCKS : 1];
    if (holds) {
        #pragma clang loop unroll(full)
        for (uint block = 0; block < BLOCKS; block++) {
            read_query<T>(query[holds ? block : 0], q, p, held, mine, s.queries, block);
        }
    }
    simdgroup_float8x8 mixed[VALUE_BLOCKS];
    #pragma clang loop unroll(full)
    for (uint block = 0; block < VALUE_BLOCKS; block++) {
        mixed[block] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }

    // Four lanes turn the scores of a query into probabilities.
    const uint row = lane / 4;
    const uint part = lane % 4;
    const int position = mine + int(row) + s.shift;
    const int real_query = s.first_query + min(mine + int(row), s.queries - 1);
    float highest = -INFINITY;
    float sum = 0.0f;
    const int low = low_of(p, first + s.shift);
    const int high = high_of(p, s, min(first + int(8 * simdgroups), s.queries) - 1 + s.shift);
    for (int tile = low; tile < high; tile += int(KEYS)) {
        const int count = high - tile;
        // The tile before is no longer read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        load_tile<T, BLOCKS, KEYS>(
            a, p, a.k + ulong(key_head) * p.k_head, p.k_token, p.width, s.first_key + tile, count, keys, index, lanes);
        load_tile<T, VALUE_BLOCKS, KEYS>(
            a, p, a.v + ulong(key_head) * p.v_head, p.v_token, p.value_width, s.first_key + tile, count, values, index,
            lanes);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        simdgroup_float8x8 products[KEYS / 8];
        #pragma clang loop unroll(full)
        for (uint j = 0; j < KEYS / 8; j++) {
            products[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
        #pragma clang loop unroll(full)
        for (uint block = 0; block < BLOCKS; block++) {
            simdgroup_float8x8 left = query[holds ? block : 0];
            if (!holds) {
                read_query<T>(left, q, p, held, mine, s.queries, block);
            }
            #pragma clang loop unroll(full)
            for (uint j = 0; j < KEYS / 8; j++) {
                simdgroup_float8x8 right;
                simdgroup_load(right, keys + 8 * j * TILE_STRIDE(BLOCKS) + 8 * block, TILE_STRIDE(BLOCKS), 0, true);
                simdgroup_multiply_accumulate(products[j], left, right, products[j]);
            }
        }
        #pragma clang loop unroll(full)
        for (uint j = 0; j < KEYS / 8; j++) {
            simdgroup_store(products[j], own + 8 * j, KEYS);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);

        float weights[KEYS / 4];
        float top = highest;
        #pragma clang loop unroll(full)
        for (uint j = 0; j < KEYS / 4; j++) {
            const int key = tile + int(4 * j + part);
            const int distance = key - position;
            weights[j] = -INFINITY;
            if (key < s.keys && distance <= p.right && distance >= -p.left) {
                const float product = own[row * KEYS + 4 * j + part];
                weights[j] = score_of(a, p, product, head, real_query, s.first_key + key, distance);
            }
            top = fmax(top, weights[j]);
        }
        top = fmax(top, simd_shuffle_xor(top, 1));
        top = fmax(top, simd_shuffle_xor(top, 2));
        const float base = base_of(top);
        const float factor = exp(highest - base);
        highest = top;
        sum *= factor;
        #pragma clang loop unroll(full)
        for (uint j = 0; j < KEYS / 4; j++) {
            const float weight = exp(weights[j] - base);
            sum += weight;
            own[row * KEYS + 4 * j + part] = weight;
        }
        if (part == 0) {
            own_factors[row] = factor;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);

        #pragma clang loop unroll(full)
        for (uint block = 0; block < VALUE_BLOCKS; block++) {
            #pragma clang loop unroll(full)
            for (uint i = 0; i < 2; i++) {
                mixed[block].thread_elements()[i] *= own_factors[held.rows[i]];
            }
        }
        #pragma clang loop unroll(full)
        for (uint j = 0; j < KEYS / 8; j++) {
            simdgroup_float8x8 left;
            simdgroup_load(left, own + 8 * j, KEYS);
            #pragma clang loop unroll(full)
            for (uint block = 0; block < VALUE_BLOCKS; block++) {
                simdgroup_float8x8 right;
                simdgroup_load(right, values + 8 * j * TILE_STRIDE(VALUE_BLOCKS) + 8 * block, TILE_STRIDE(VALUE_BLOCKS));
                simdgroup_multiply_accumulate(mixed[block], left, right, mixed[block]);
            }
        }
    }

    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (part == 0) {
        own_factors[row] = sum;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (uint i = 0; i < 2; i++) {
        const int query = mine + int(held.rows[i]);
        if (query >= s.queries) {
            continue;
        }
        const bool sees = low_of(p, query + s.shift) < high_of(p, s, query + s.shift);
        const float divisor = own_factors[held.rows[i]];
        device T *to = a.out + (ulong(s.first_query + query) * p.heads + head) * p.value_width;
        #pragma clang loop unroll(full)
        for (uint block = 0; block < VALUE_BLOCKS; block++) {
            const uint column = 8 * block + held.columns[i];
            if (column < p.value_width) {
                to[column] = T(sees ? mixed[block].thread_elements()[i] / divisor : 0.0f);
            }
        }
    }
}

// Few queries

// A lane holds eight elements of a key, so many lanes hold one.
#define ROW_MEMBERS(BLOCKS) \
    ((BLOCKS) <= 1 ? 1 : (BLOCKS) <= 2 ? 2 : (BLOCKS) <= 4 ? 4 : (BLOCKS) <= 8 ? 8 : (BLOCKS) <= 16 ? 16 : 32)
// Heads that read a key together: with more, a lane's registers do not hold their queries and what they add up.
constant constexpr uint ROW_HEADS = 4;
constant constexpr uint MOST_ROW_SIMDGROUPS = 8;

struct RunningRow {
    float4 query[2];
    float4 mixed[2];
    float highest;
    float sum;

    void join(float other_highest, float other_sum, float4 first, float4 second) {
        const float top = fmax(highest, other_highest);
        const float base = base_of(top);
        const float mine = exp(highest - base);
        const float theirs = exp(other_highest - base);
        highest = top;
        sum = sum * mine + other_sum * theirs;
        mixed[0] = mixed[0] * splat(mine) + first * splat(theirs);
        mixed[1] = mixed[1] * splat(mine) + second * splat(theirs);
    }
};

static inline float4 shuffled(float4 v, ushort mask) {
    return four(simd_shuffle_xor(v.x, mask), simd_shuffle_xor(v.y, mask), simd_shuffle_xor(v.z, mask),
                simd_shuffle_xor(v.w, mask));
}

// The last sequence that begins at or before a token, of which empty ones hold none.
template <typename T>
static inline uint sequence_of(thread const AttentionInputs<T> &a, constant AttentionParameters &p, uint token) {
    uint index = 0;
    uint last = p.sequences - 1;
    while (index < last) {
        const uint middle = (index + last + 1) / 2;
        if (a.query_boundaries[middle] <= token) {
            index = middle;
        } else {
            last = middle - 1;
        }
    }
    return index;
}

// The grid is (key heads * parts of a group, tokens * splits).
template <typename T, uint MEMBERS>
static inline void attend_row(
    thread const AttentionInputs<T> &a, constant AttentionParameters &p, threadgroup float *shared, uint2 group,
    uint index, uint lane, uint simdgroup, uint simdgroups
) {
    const uint token = group.y / p.splits;
    const uint split = group.y % p.splits;
    const uint parts = (p.group + ROW_HEADS - 1) / ROW_HEADS;
    const uint key_head = group.x / parts;
    const uint skipped = group.x % parts * ROW_HEADS;
    const uint first_head = key_head * p.group + skipped;
    const uint heads = min(ROW_HEADS, p.group - skipped);
    Sequence s;
    read_sequence(s, a, p, sequence_of(a, p, token));
    const int position = int(token) - s.first_query + s.shift;
    const bool sees = low_of(p, position) < high_of(p, s, position);
    const int low = low_of(p, position) + int(split) * p.split_keys;
    const int high = min(high_of(p, s, position), low + p.split_keys);
    const bool aligned = p.flags & ALIGNED;
    const uint column = 8 * (lane % MEMBERS);
    const int streams = int(32 * simdgroups / MEMBERS);
    const int stream = int((32 * simdgroup + lane) / MEMBERS);

    RunningRow rows[ROW_HEADS];
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ROW_HEADS; h++) {
        rows[h].mixed[0] = rows[h].mixed[1] = splat(0.0f);
        rows[h].highest = -INFINITY;
        rows[h].sum = 0.0f;
        if (h < heads) {
            device const T *q = a.q + ulong(token) * p.q_token + ulong(first_head + h) * p.q_head;
            rows[h].query[0] = four_of(q, column, p.width, aligned);
            rows[h].query[1] = four_of(q, column + 4, p.width, aligned);
        }
    }
    for (int begin = low; begin < high; begin += streams) {
        const int key = begin + stream;
        const bool there = key < high;
        float4 k[2] = { splat(0.0f), splat(0.0f) };
        float4 v[2] = { splat(0.0f), splat(0.0f) };
        if (there) {
            const ulong at = row_of_key(a, p, s.first_key + key);
            device const T *k_row = a.k + at * p.k_token + ulong(key_head) * p.k_head;
            device const T *v_row = a.v + at * p.v_token + ulong(key_head) * p.v_head;
            #pragma clang loop unroll(full)
            for (uint i = 0; i < 2; i++) {
                k[i] = four_of(k_row, column + 4 * i, p.width, aligned);
                v[i] = four_of(v_row, column + 4 * i, p.value_width, aligned);
            }
        }
        #pragma clang loop unroll(full)
        for (uint h = 0; h < ROW_HEADS; h++) {
            if (h >= heads) {
                break;
            }
            float product = total(rows[h].query[0] * k[0] + rows[h].query[1] * k[1]);
            #pragma clang loop unroll(full)
            for (uint step = MEMBERS / 2; step > 0; step /= 2) {
                product += simd_shuffle_xor(product, step);
            }
            if (there) {
                const float score =
                    score_of(a, p, product, first_head + h, int(token), s.first_key + key, key - position);
                rows[h].join(score, 1.0f, v[0], v[1]);
            }
        }
    }

    const uint stride = p.value_width + 2;
    threadgroup float *own = shared + simdgroup * stride;
    #pragma clang loop unroll(full)
    for (uint h = 0; h < ROW_HEADS; h++) {
        if (h >= heads) {
            break;
        }
        #pragma clang loop unroll(full)
        for (uint step = MEMBERS; step < 32; step *= 2) {
            const float other_highest = simd_shuffle_xor(rows[h].highest, step);
            const float other_sum = simd_shuffle_xor(rows[h].sum, step);
            const float4 first = shuffled(rows[h].mixed[0], step);
            const float4 second = shuffled(rows[h].mixed[1], step);
            rows[h].join(other_highest, other_sum, first, second);
        }
        // The head before is no longer read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (lane == 0) {
            own[0] = rows[h].highest;
            own[1] = rows[h].sum;
        }
        if (lane < MEMBERS) {
            #pragma clang loop unroll(full)
            for (uint i = 0; i < 8; i++) {
                if (column + i < p.value_width) {
                    own[2 + column + i] = rows[h].mixed[i / 4][i % 4];
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float highest = -INFINITY;
        for (uint i = 0; i < simdgroups; i++) {
            highest = fmax(highest, float(shared[i * stride]));
        }
        const float base = base_of(highest);
        float sum = 0.0f;
        for (uint i = 0; i < simdgroups; i++) {
            sum += shared[i * stride + 1] * exp(shared[i * stride] - base);
        }
        const ulong row = ulong(token) * p.heads + first_head + h;
        device float *to = a.parts + (row * p.splits + split) * stride;
        for (uint c = index; c < p.value_width; c += 32 * simdgroups) {
            float value = 0.0f;
            for (uint i = 0; i < simdgroups; i++) {
                value += shared[i * stride + 2 + c] * exp(shared[i * stride] - base);
            }
            if (p.splits == 1) {
                a.out[row * p.value_width + c] = T(sees ? value / sum : 0.0f);
            } else {
                to[2 + c] = value;
            }
        }
        if (p.splits > 1 && index == 0) {
            to[0] = highest;
            to[1] = sum;
        }
    }
}

// The grid is (heads, tokens).
template <typename T>
static inline void join_parts(
    thread const AttentionInputs<T> &a, constant AttentionParameters &p, uint2 group, uint index, uint lanes
) {
    Sequence s;
    read_sequence(s, a, p, sequence_of(a, p, group.y));
    const int position = int(group.y) - s.first_query + s.shift;
    const bool sees = low_of(p, position) < high_of(p, s, position);
    const ulong row = ulong(group.y) * p.heads + group.x;
    const uint stride = p.value_width + 2;
    device const float *parts = a.parts + row * p.splits * stride;
    float highest = -INFINITY;
    for (uint i = 0; i < p.splits; i++) {
        highest = fmax(highest, parts[i * stride]);
    }
    const float base = base_of(highest);
    for (uint c = index; c < p.value_width; c += lanes) {
        float sum = 0.0f;
        float value = 0.0f;
        for (uint i = 0; i < p.splits; i++) {
            const float factor = exp(parts[i * stride] - base);
            sum += parts[i * stride + 1] * factor;
            value += parts[i * stride + 2 + c] * factor;
        }
        a.out[row * p.value_width + c] = T(sees ? value / sum : 0.0f);
    }
}

#define ATTENTION_BUFFERS(T)                                                                \
    device const T *q                [[buffer(0)]],                                         \
    device const T *k                [[buffer(1)]],                                         \
    device const T *v                [[buffer(2)]],                                         \
    device const uint *places        [[buffer(3)]],                                         \
    constant uint *query_boundaries  [[buffer(4)]],                                         \
    constant uint *key_boundaries    [[buffer(5)]],                                         \
    constant float *slopes           [[buffer(6)]],                                         \
    device const float *table        [[buffer(7)]],                                         \
    device const T *from_query       [[buffer(8)]],                                         \
    device const T *from_key         [[buffer(9)]],                                         \
    constant uint *query_buckets     [[buffer(10)]],                                        \
    constant uint *key_buckets       [[buffer(11)]],                                        \
    device T *out                    [[buffer(12)]],                                        \
    device float *parts              [[buffer(13)]],                                        \
    constant AttentionParameters &p  [[buffer(14)]],                                        \
    uint2 group                      [[threadgroup_position_in_grid]],                      \
    uint index                       [[thread_index_in_threadgroup]],                       \
    uint lane                        [[thread_index_in_simdgroup]],                         \
    uint simdgroup                   [[simdgroup_index_in_threadgroup]],                    \
    uint simdgroups                  [[simdgroups_per_threadgroup]]
#define ATTENTION_STRUCT                                                                    \
    { q, k, v, places, query_boundaries, key_boundaries, slopes, table,                     \
      from_query, from_key, query_buckets, key_buckets, out, parts }

// WIDER is the larger of the two widths.
#define ATTENTION_KERNELS_OF(BLOCKS, VALUE_BLOCKS, WIDER, SUFFIX, T)                                      \
kernel void attention_tiles_##BLOCKS##_##VALUE_BLOCKS##_##SUFFIX(ATTENTION_BUFFERS(T)) {                  \
    threadgroup float keys[TILE_KEYS(WIDER) * TILE_STRIDE(BLOCKS)];                                       \
    threadgroup float values[TILE_KEYS(WIDER) * TILE_STRIDE(VALUE_BLOCKS)];                               \
    threadgroup float scores[MOST_TILE_SIMDGROUPS * 8 * TILE_KEYS(WIDER)];                                \
    threadgroup float factors[MOST_TILE_SIMDGROUPS * 8];                                                  \
    const AttentionInputs<T> a = ATTENTION_STRUCT;                                                        \
    attend_tile<T, BLOCKS, VALUE_BLOCKS, TILE_KEYS(WIDER)>(                                               \
        a, p, keys, values, scores, factors, group, index, lane, simdgroup, simdgroups);                  \
}                                                                                                         \
kernel void attention_rows_##BLOCKS##_##VALUE_BLOCKS##_##SUFFIX(ATTENTION_BUFFERS(T)) {                   \
    threadgroup float shared[MOST_ROW_SIMDGROUPS * (8 * VALUE_BLOCKS + 2)];                               \
    const AttentionInputs<T> a = ATTENTION_STRUCT;                                                        \
    attend_row<T, ROW_MEMBERS(WIDER)>(a, p, shared, group, index, lane, simdgroup, simdgroups);           \
}                                                                                                         \
kernel void attention_join_##BLOCKS##_##VALUE_BLOCKS##_##SUFFIX(ATTENTION_BUFFERS(T)) {                   \
    const AttentionInputs<T> a = ATTENTION_STRUCT;                                                        \
    join_parts<T>(a, p, group, index, 32 * simdgroups);                                                   \
}

#if defined(__HAVE_BFLOAT__)
#define ATTENTION_KERNELS(BLOCKS, VALUE_BLOCKS, WIDER)                                                    \
ATTENTION_KERNELS_OF(BLOCKS, VALUE_BLOCKS, WIDER, f32, float)                                             \
ATTENTION_KERNELS_OF(BLOCKS, VALUE_BLOCKS, WIDER, f16, half)                                              \
ATTENTION_KERNELS_OF(BLOCKS, VALUE_BLOCKS, WIDER, bf16, bfloat)
#else
#define ATTENTION_KERNELS(BLOCKS, VALUE_BLOCKS, WIDER)                                                    \
ATTENTION_KERNELS_OF(BLOCKS, VALUE_BLOCKS, WIDER, f32, float)                                             \
ATTENTION_KERNELS_OF(BLOCKS, VALUE_BLOCKS, WIDER, f16, half)
#endif
