// Rotary positions: the first `rotated` elements of a row rotate in pairs, (i, i + rotated / 2) or, when
// interleaved, (2i, 2i + 1); the rest is copied. The tables of cosines and sines are f32, one row of
// rotated / 2 per position, and every row has the index of its position. A lane works on four pairs
// or copies four elements; the grid is (lanes, rows). A position beyond the tables gives NaN.

struct RopeParameters {
    uint columns;
    uint rotated;
    uint known_positions; // rows of the tables
    uint flags;
    RowStarts input;
    RowStarts positions;
};

template <typename T>
struct Rotation {
    device const T *from;
    device T *to;
    device const float *cosines;
    device const float *sines;

    bool known; // whether the tables have the position

    void rotate(uint pair, uint first, uint second) const {
        if (!known) {
            to[first] = T(NAN);
            to[second] = T(NAN);
            return;
        }
        const float a = float(from[first]);
        const float b = float(from[second]);
        const float c = cosines[pair];
        const float s = sines[pair];
        to[first] = T(a * c - b * s);
        to[second] = T(b * c + a * s);
    }

    void turn4_halves(uint pair, uint half_width) const {
        const float4 a = load4(from + pair, true);
        const float4 b = load4(from + half_width + pair, true);
        const float4 c = load4(cosines + pair, true);
        const float4 s = load4(sines + pair, true);
        store4(to + pair, a * c - b * s, true);
        store4(to + half_width + pair, b * c + a * s, true);
    }

    void turn4_interleaved(uint pair) const {
        const float4 low = load4(from + 2 * pair, true);
        const float4 high = load4(from + 2 * pair + 4, true);
        const float4 a = four(low.x, low.z, high.x, high.z);
        const float4 b = four(low.y, low.w, high.y, high.w);
        const float4 c = load4(cosines + pair, true);
        const float4 s = load4(sines + pair, true);
        const float4 first = a * c - b * s;
        const float4 second = b * c + a * s;
        store4(to + 2 * pair, four(first.x, second.x, first.y, second.y), true);
        store4(to + 2 * pair + 4, four(first.z, second.z, first.w, second.w), true);
    }
};

// What a lane of a row does; `rotated` elements turn.
template <typename T>
static inline void turn_row(thread const Rotation<T> &rotation, uint lane, uint columns, uint rotated, uint flags) {
    const uint pairs = rotated / 2;
    const uint rotating_lanes = (pairs + 3) / 4;
    if (lane >= rotating_lanes) {
        const uint start = rotated + 4 * (lane - rotating_lanes);
        for (uint i = start; i < min(start + 4, columns); i++) {
            rotation.to[i] = rotation.from[i];
        }
        return;
    }
    const uint pair = 4 * lane;
    const bool interleaved = flags & INTERLEAVED;
    // ALIGNED promises that `pairs` is a multiple of four.
    if ((flags & ALIGNED) && rotation.known) {
        if (interleaved) {
            rotation.turn4_interleaved(pair);
        } else {
            rotation.turn4_halves(pair, pairs);
        }
        return;
    }
    for (uint k = pair; k < min(pair + 4, pairs); k++) {
        if (interleaved) {
            rotation.rotate(k, 2 * k, 2 * k + 1);
        } else {
            rotation.rotate(k, k, k + pairs);
        }
    }
}

template <typename T>
static inline void rope_lane(
    device const T *x, device const float *cosines, device const float *sines, device const uint *positions,
    device T *out, constant RopeParameters &p, uint2 at
) {
    const uint position = positions[row_start(p.positions, at.y)];
    const ulong table = ulong(position) * (p.rotated / 2);
    Rotation<T> rotation;
    rotation.known = position < p.known_positions;
    rotation.from = x + row_start(p.input, at.y);
    rotation.to = out + ulong(at.y) * p.columns;
    rotation.cosines = cosines + table;
    rotation.sines = sines + table;
    turn_row<T>(rotation, at.x, p.columns, p.rotated, p.flags);
}

// Queries and keys of tokens, rotated, and their values: the queries side by side, keys and values into the
// rows of pages that `slots` names, [slots, key heads, columns]. The grid is (lanes, tokens * rows), a
// token's rows being its queries, its keys and its values.
struct RopeStoreParameters {
    uint columns;
    uint rotated;
    uint known_positions;
    uint flags;
    uint heads;
    uint key_heads;
    RowStarts query;
    RowStarts key;
    RowStarts value;
};

template <typename T>
static inline void rope_store_lane(
    device const T *query, device const T *key, device const T *value, device const float *cosines,
    device const float *sines, device const uint *positions, device const uint *slots, device T *turned,
    device T *keys, device T *values, constant RopeStoreParameters &p, uint2 at
) {
    const uint rows = p.heads + 2 * p.key_heads;
    const uint token = at.y / rows;
    const uint row = at.y % rows;
    const ulong slot = ulong(slots[token]) * p.key_heads;
    Rotation<T> rotation;
    uint rotated = p.rotated;
    if (row < p.heads) {
        const uint head = token * p.heads + row;
        rotation.from = query + row_start(p.query, head);
        rotation.to = turned + ulong(head) * p.columns;
    } else if (row < p.heads + p.key_heads) {
        const uint head = row - p.heads;
        rotation.from = key + row_start(p.key, token * p.key_heads + head);
        rotation.to = keys + (slot + head) * p.columns;
    } else {
        const uint head = row - p.heads - p.key_heads;
        rotation.from = value + row_start(p.value, token * p.key_heads + head);
        rotation.to = values + (slot + head) * p.columns;
        rotated = 0;
    }
    const uint position = p.rotated > 0 ? positions[token] : 0;
    const ulong table = ulong(position) * (p.rotated / 2);
    rotation.known = position < p.known_positions;
    rotation.cosines = cosines + table;
    rotation.sines = sines + table;
    turn_row<T>(rotation, at.x, p.columns, rotated, p.flags);
}

#define ROPE_KERNEL(NAME, T)                                                           \
kernel void NAME(                                                                      \
    device const T *x            [[buffer(0)]],                                        \
    device const float *cosines  [[buffer(1)]],                                        \
    device const float *sines    [[buffer(2)]],                                        \
    device const uint *positions [[buffer(3)]],                                        \
    device T *out                [[buffer(4)]],                                        \
    constant RopeParameters &p   [[buffer(5)]],                                        \
    uint2 at                     [[thread_position_in_grid]]                           \
) {                                                                                    \
    rope_lane<T>(x, cosines, sines, positions, out, p, at);                            \
}

#define ROPE_STORE_KERNEL(NAME, T)                                                     \
kernel void NAME(                                                                      \
    device const T *query           [[buffer(0)]],                                     \
    device const T *key             [[buffer(1)]],                                     \
    device const T *value           [[buffer(2)]],                                     \
    device const float *cosines     [[buffer(3)]],                                     \
    device const float *sines       [[buffer(4)]],                                     \
    device const uint *positions    [[buffer(5)]],                                     \
    device const uint *slots        [[buffer(6)]],                                     \
    device T *turned                [[buffer(7)]],                                     \
    device T *keys                  [[buffer(8)]],                                     \
    device T *values                [[buffer(9)]],                                     \
    constant RopeStoreParameters &p [[buffer(10)]],                                    \
    uint2 at                        [[thread_position_in_grid]]                        \
) {                                                                                    \
    rope_store_lane<T>(                                                                \
        query, key, value, cosines, sines, positions, slots, turned, keys, values, p, at); \
}

ROPE_KERNEL(rope_f32, float)
ROPE_KERNEL(rope_f16, half)
ROPE_STORE_KERNEL(rope_store_f32, float)
ROPE_STORE_KERNEL(rope_store_f16, half)
#if defined(__HAVE_BFLOAT__)
ROPE_KERNEL(rope_bf16, bfloat)
ROPE_STORE_KERNEL(rope_store_bf16, bfloat)
#endif
