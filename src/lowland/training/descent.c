/* Stochastic gradient descent for one dense ReLU network on sparse inputs, and its loss.

A layer's weights are stored (in, out), followed by its bias, with widths rounded up to whole
vectors of 16; what is rounded up stays zero. A sample's first layer is then one multiply-add of
vectors for each input that is not zero. All deltas of a batch are computed before the weights
change, and go straight into the weights: there is no gradient. The compiler is told the widths,
so that every inner loop has a fixed length:

  CLASSES             the outputs that count
  DEPTH               the number of layers
  WIDTHS              the sum of all out, IN_TIMES_OUT that of in * out beyond the first layer
  FIRST(DO)           DO(l, in, out, bias, place) for layer 0: whether it learns a bias, and where
                      in the weights it begins
  LATER(DO)           the same for layers 1, 2, ... in this order
  BACKWARDS(DO)       and from the last one down to 1

Nothing here may be compiled as if numbers were always finite: a training that diverges must end
with a loss that is none. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define CHUNK 64 /* samples that are evaluated at once */
#define TILE 4   /* rows of a product that are computed at once */
#define INLINE static inline __attribute__((always_inline))
#define EACH_LAYER(DO) FIRST(DO) LATER(DO)
#define SCORES ((CLASSES + LANES - 1) / LANES * LANES)

typedef float vec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
typedef float memory_vec __attribute__((vector_size(64), aligned(4), may_alias));

typedef struct {
    const int64_t *starts;  /* of each sample in the two below, and the end of the last */
    const int32_t *columns; /* of the inputs that are not zero */
    const float *values;
    const int32_t *labels;
} data;

typedef struct {
    float *h[DEPTH]; /* (samples, out): activities, of the last layer its scores */
    float *d[DEPTH]; /* (samples, out): what they change by, times the learning rate */
    float *t[DEPTH]; /* (out, in): weights of layers beyond the first, transposed */
} room;

enum penalty { NONE, SQUARED, NORM, GLOBAL_NORM };

INLINE vec load(const float *p) { return *(const memory_vec *)p; }
INLINE void store(float *p, vec v) { *(memory_vec *)p = v; }
INLINE vec chosen(ivec where, vec a, vec b) { return (vec)((where & (ivec)a) | (~where & (ivec)b)); }
INLINE int padded(int rows) { return (rows + TILE - 1) / TILE * TILE; }

INLINE float sum(vec v) {
    float t[LANES];
    store(t, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}

INLINE float largest(vec v) {
    float t[LANES];
    store(t, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
    return t[0];
}

/* exp(x) for x <= 0: 2^n times the Taylor polynomial of what is left, at most ln(2) / 2. */
INLINE vec exponential(vec x) {
    vec low = (vec){0} - 87.0f;
    x = chosen(x < low, low, x);
    ivec n = __builtin_convertvector(x * 1.44269504f - 0.5f, ivec);
    vec k = __builtin_convertvector(n, vec);
    vec r = x - k * 0.693359375f; /* ln(2) in two parts: k times the first is exact */
    r = r + k * 2.12194440e-4f;
    vec p = (vec){0} + 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (vec)((n + 127) << 23);
}

/* Four rows of start + A B in one or two vectors of columns. The start comes last: added to each
   product in turn, every one of them would be rounded as if it were as large. */
INLINE void tile(float *C, int ldc, const float *start, int lds, const float *A, int row, int step,
                 const float *B, int ldb, int inner, int two) {
    vec a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
    for (int k = 0; k < inner; k++, A += step, B += ldb) {
        float x0 = A[0], x1 = A[row], x2 = A[2 * row], x3 = A[3 * row];
        vec u = load(B);
        a0 += x0 * u, a1 += x1 * u, a2 += x2 * u, a3 += x3 * u;
        if (two) {
            vec v = load(B + LANES);
            b0 += x0 * v, b1 += x1 * v, b2 += x2 * v, b3 += x3 * v;
        }
    }
    if (start) {
        a0 += load(start), a1 += load(start + lds);
        a2 += load(start + 2 * lds), a3 += load(start + 3 * lds);
    }
    store(C, a0), store(C + ldc, a1), store(C + 2 * ldc, a2), store(C + 3 * ldc, a3);
    if (!two) return;
    C += LANES;
    if (start) {
        start += LANES;
        b0 += load(start), b1 += load(start + lds);
        b2 += load(start + 2 * lds), b3 += load(start + 3 * lds);
    }
    store(C, b0), store(C + ldc, b1), store(C + 2 * ldc, b2), store(C + 3 * ldc, b3);
}

/* C = start + A B, with `rows` a multiple of TILE. Rows of A are `row` apart, its columns `step`;
   rows of start are `lds` apart, and it may be C, or NULL for zeros. */
INLINE void product(float *C, int ldc, const float *start, int lds, const float *A, int row, int step,
                    const float *B, int ldb, int rows, int inner) {
    for (int c = 0; c < ldb; c += 2 * LANES)
        for (int r = 0; r < rows; r += TILE) {
            const float *from = start ? start + (ptrdiff_t)r * lds + c : NULL;
            float *to = C + (ptrdiff_t)r * ldc + c;
            if (c + 2 * LANES <= ldb)
                tile(to, ldc, from, lds, A + (ptrdiff_t)r * row, row, step, B + c, ldb, inner, 1);
            else
                tile(to, ldc, from, lds, A + (ptrdiff_t)r * row, row, step, B + c, ldb, inner, 0);
        }
}

/* z = start + x W for one sparse x, in `count` <= 4 vectors of columns. */
INLINE void gather(float *z, const float *start, const float *W, int out, const int32_t *columns,
                   const float *values, int64_t nonzeros, int count) {
    vec a0 = load(start), a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
    if (count > 1) a1 = load(start + LANES);
    if (count > 2) a2 = load(start + 2 * LANES);
    if (count > 3) a3 = load(start + 3 * LANES);
    int64_t i = 0;
    for (; i + 1 < nonzeros; i += 2) { /* two sums, of which neither waits for the other */
        const float *p = W + (ptrdiff_t)columns[i] * out, *q = W + (ptrdiff_t)columns[i + 1] * out;
        float x = values[i], y = values[i + 1];
        a0 += x * load(p), b0 += y * load(q);
        if (count > 1) a1 += x * load(p + LANES), b1 += y * load(q + LANES);
        if (count > 2) a2 += x * load(p + 2 * LANES), b2 += y * load(q + 2 * LANES);
        if (count > 3) a3 += x * load(p + 3 * LANES), b3 += y * load(q + 3 * LANES);
    }
    if (i < nonzeros) {
        const float *p = W + (ptrdiff_t)columns[i] * out;
        float x = values[i];
        a0 += x * load(p);
        if (count > 1) a1 += x * load(p + LANES);
        if (count > 2) a2 += x * load(p + 2 * LANES);
        if (count > 3) a3 += x * load(p + 3 * LANES);
    }
    store(z, a0 + b0);
    if (count > 1) store(z + LANES, a1 + b1);
    if (count > 2) store(z + 2 * LANES, a2 + b2);
    if (count > 3) store(z + 3 * LANES, a3 + b3);
}

/* W += x^T d for one sparse x, in `count` <= 4 vectors of columns. */
INLINE void scatter(float *W, const float *d, int out, const int32_t *columns, const float *values,
                    int64_t nonzeros, int count) {
    vec d0 = load(d), d1 = {0}, d2 = {0}, d3 = {0};
    if (count > 1) d1 = load(d + LANES);
    if (count > 2) d2 = load(d + 2 * LANES);
    if (count > 3) d3 = load(d + 3 * LANES);
    for (int64_t i = 0; i < nonzeros; i++) {
        float *p = W + (ptrdiff_t)columns[i] * out;
        float x = values[i];
        store(p, load(p) + x * d0);
        if (count > 1) store(p + LANES, load(p + LANES) + x * d1);
        if (count > 2) store(p + 2 * LANES, load(p + 2 * LANES) + x * d2);
        if (count > 3) store(p + 3 * LANES, load(p + 3 * LANES) + x * d3);
    }
}

/* The positive part, times a mask; what is no number stays none. */
INLINE void rectify(float *h, const float *mask, int rows, int out) {
    vec zero = {0};
    for (int i = 0; i < rows * out; i += LANES) {
        vec z = load(h + i);
        z = chosen(z < zero, zero, z);
        store(h + i, mask ? z * load(mask + i) : z);
    }
}

/* The delta of what a rectifier and its mask were given. */
INLINE void gate(float *d, const float *h, const float *mask, int rows, int out) {
    vec zero = {0};
    for (int i = 0; i < rows * out; i += LANES) {
        vec v = load(d + i);
        v = chosen(load(h + i) > zero, v, zero);
        store(d + i, mask ? v * load(mask + i) : v);
    }
}

/* e = exp(z - its largest) for the classes that count; returns the largest, `total` their sum. */
INLINE float softmax(float *e, const float *z, float *total) {
    const ivec lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vec zero = {0}, low = zero - 3e38f, top = low, all = zero;
    for (int c = 0; c < SCORES; c += LANES) {
        vec v = chosen(lanes < CLASSES - c, load(z + c), low);
        top = chosen(v > top, v, top);
    }
    float most = largest(top);
    for (int c = 0; c < SCORES; c += LANES) {
        vec v = chosen(lanes < CLASSES - c, exponential(load(z + c) - most), zero);
        store(e + c, v);
        all += v;
    }
    *total = sum(all);
    return most;
}

/* The scores of `m` samples: those named in `rows`, or those from `first` on. `masks` belong to
   the samples in this order. */
INLINE void forward(const float *w, const room *room, const data *data, const int64_t *rows,
                    int64_t first, int m, const float *const *masks) {
#define GATHER(l, in, out, bias, place)                                                           \
    for (int s = 0; s < m; s++) {                                                                 \
        int64_t k = rows ? rows[s] : first + s, begin = data->starts[k];                          \
        int64_t nonzeros = data->starts[k + 1] - begin;                                           \
        const int32_t *columns = data->columns + begin;                                           \
        const float *values = data->values + begin, *W = w + place, *b = W + in * out;            \
        float *z = room->h[l] + s * out;                                                          \
        int c = 0;                                                                                \
        for (; c + 4 * LANES <= out; c += 4 * LANES)                                              \
            gather(z + c, b + c, W + c, out, columns, values, nonzeros, 4);                       \
        if (c < out) gather(z + c, b + c, W + c, out, columns, values, nonzeros, out / LANES % 4);\
    }                                                                                             \
    memset(room->h[l] + m * out, 0, sizeof(float) * (padded(m) - m) * out);                       \
    if (l + 1 < DEPTH) rectify(room->h[l], masks ? masks[l] : NULL, m, out);
#define MULTIPLY(l, in, out, bias, place)                                                         \
    product(room->h[l], out, w + place + in * out, 0, room->h[l - 1], in, 1, w + place, out,      \
            padded(m), in);                                                                       \
    if (l + 1 < DEPTH) rectify(room->h[l], masks ? masks[l] : NULL, m, out);
    FIRST(GATHER)
    LATER(MULTIPLY)
}

INLINE void transpose(float *T, const float *W, int in, int out) {
    for (int i = 0; i < in; i += LANES)
        for (int o = 0; o < out; o++)
            for (int k = 0; k < LANES; k++) T[o * in + i + k] = W[(i + k) * out + o];
}

/* The deltas of all layers, from those of the scores. */
INLINE void backward(const float *w, const room *room, int m, const float *const *masks) {
#define TURN_BACK(l, in, out, bias, place)                                                        \
    transpose(room->t[l], w + place, in, out);                                                    \
    product(room->d[l - 1], in, NULL, 0, room->d[l], out, 1, room->t[l], in, padded(m), out);     \
    gate(room->d[l - 1], room->h[l - 1], masks ? masks[l - 1] : NULL, m, in);
    BACKWARDS(TURN_BACK)
}

/* Change the weights by the deltas. */
INLINE void update(float *w, const room *room, const data *data, const int64_t *rows, int m) {
#define ADD_BIAS(l, in, out, place)                                                               \
    for (int s = 0; s < m; s++)                                                                   \
        for (int c = 0; c < out; c += LANES) {                                                    \
            float *b = w + place + in * out + c;                                                  \
            store(b, load(b) + load(room->d[l] + s * out + c));                                   \
        }
#define SCATTER(l, in, out, bias, place)                                                          \
    for (int s = 0; s < m; s++) {                                                                 \
        int64_t begin = data->starts[rows[s]], nonzeros = data->starts[rows[s] + 1] - begin;      \
        const int32_t *columns = data->columns + begin;                                           \
        const float *values = data->values + begin, *d = room->d[l] + s * out;                    \
        float *W = w + place;                                                                     \
        int c = 0;                                                                                \
        for (; c + 4 * LANES <= out; c += 4 * LANES)                                              \
            scatter(W + c, d + c, out, columns, values, nonzeros, 4);                             \
        if (c < out) scatter(W + c, d + c, out, columns, values, nonzeros, out / LANES % 4);      \
    }                                                                                             \
    if (bias) { ADD_BIAS(l, in, out, place) }
#define ACCUMULATE(l, in, out, bias, place)                                                       \
    product(w + place, out, w + place, out, room->h[l - 1], 1, in, room->d[l], out, in, m);       \
    if (bias) { ADD_BIAS(l, in, out, place) }
    FIRST(SCATTER)
    LATER(ACCUMULATE)
}

INLINE float squares(const float *w, int count) {
    vec a = {0}, b = {0};
    int i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        vec x = load(w + i), y = load(w + i + LANES);
        a += x * x, b += y * y;
    }
    if (i < count) a += load(w + i) * load(w + i);
    return sum(a + b);
}

/* Take the gradient of the penalty off the weights, biases aside. */
INLINE void shrink(float *w, enum penalty penalty, float beta, float rate) {
    float sizes[DEPTH], all = 0;
#define MEASURE(l, in, out, bias, place)                                                          \
    sizes[l] = penalty == SQUARED ? 0 : squares(w + place, in * out);                             \
    all += sizes[l];
    EACH_LAYER(MEASURE)
#define SHRINK(l, in, out, bias, place)                                                           \
    {                                                                                             \
        float size = sqrtf(penalty == NORM ? sizes[l] : all);                                     \
        float factor = beta / (size < 1.17549435e-38f ? 1.17549435e-38f : size);                  \
        if (penalty == SQUARED) factor = 2 * beta;                                                \
        float kept = 1 - rate * factor;                                                           \
        for (int i = 0; i < in * out; i += LANES) store(w + place + i, kept * load(w + place + i));\
    }
    EACH_LAYER(SHRINK)
}

static void *furnish(room *room, int rows) {
    size_t floats = 2 * (size_t)padded(rows) * WIDTHS + IN_TIMES_OUT;
    float *memory = aligned_alloc(64, floats * sizeof(float)), *next = memory;
#define PLACE(l, in, out, bias, place)                                                            \
    room->h[l] = next, next += (size_t)padded(rows) * out;                                        \
    room->d[l] = next, next += (size_t)padded(rows) * out;                                        \
    room->t[l] = next, next += l ? in * out : 0;
    if (memory) { EACH_LAYER(PLACE) }
    return memory;
}

/* One pass through `n` samples in the given order, in steps of `batch` with a rate for each step.
   `masks` has for each layer NULL, or (n, out) factors of its activities in the order of the
   samples. Returns 0, or 1 if there is no memory. */
int epoch(float *w, const data *data, const int64_t *order, int64_t n, int64_t batch,
          const float *rates, int penalty, float beta, const float *const *masks) {
    room room;
    void *memory = furnish(&room, (int)batch);
    if (!memory) return 1;
    for (int64_t begin = 0; begin < n; begin += batch) {
        const int64_t *rows = order + begin;
        int m = (int)(n - begin < batch ? n - begin : batch);
        const float *own[DEPTH];
#define ADVANCE(l, in, out, bias, place) own[l] = masks[l] ? masks[l] + begin * out : NULL;
        EACH_LAYER(ADVANCE)
        forward(w, &room, data, rows, 0, m, own);
        float rate = rates[begin / batch], *d = room.d[DEPTH - 1];
        for (int s = 0; s < m; s++, d += SCORES) {
            float total;
            softmax(d, room.h[DEPTH - 1] + s * SCORES, &total);
            float scale = -rate / m, share = scale / total;
            for (int c = 0; c < SCORES; c += LANES) store(d + c, share * load(d + c));
            d[data->labels[rows[s]]] -= scale;
        }
        memset(d, 0, sizeof(float) * (padded(m) - m) * SCORES);
        backward(w, &room, m, own);
        if (penalty != NONE) shrink(w, penalty, beta, rate);
        update(w, &room, data, rows, m);
    }
    free(memory);
    return 0;
}

/* The summed cross-entropy of the first `n` samples, and how many of them are taken for another
   class. Returns 0, or 1 if there is no memory. */
int evaluate(const float *w, const data *data, int64_t n, double *loss, int64_t *wrong) {
    room room;
    void *memory = furnish(&room, CHUNK);
    if (!memory) return 1;
    *loss = 0, *wrong = 0;
    for (int64_t begin = 0; begin < n; begin += CHUNK) {
        int m = (int)(n - begin < CHUNK ? n - begin : CHUNK);
        forward(w, &room, data, NULL, begin, m, NULL);
        for (int s = 0; s < m; s++) {
            const float *z = room.h[DEPTH - 1] + s * SCORES;
            float total, most = softmax(room.d[DEPTH - 1], z, &total);
            int label = data->labels[begin + s], first = 0;
            while (first < CLASSES && z[first] != most) first++;
            *loss += (most - z[label]) + logf(total);
            *wrong += first != label;
        }
    }
    free(memory);
    return 0;
}
