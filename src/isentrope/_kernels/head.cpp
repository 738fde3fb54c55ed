// The output head in tiles: logits, their statistics and the gradients that follow, for CPUs with wide matrix kernels.
//
// Shapes: hidden [rows, width] and weight [vocab, width] in float or bfloat16, row-major. A tile of logits is computed
// transposed, [tokens of the vocabulary, rows], in float32, by the same matrix kernels that PyTorch uses in its own
// flash attention (they accumulate bfloat16 products in float32 and return float32, which its matrix product does not).
// A tile and what is made of it stay in the second-level cache; nothing of size rows x vocab is written unless `store`
// asks for it.
//
// The target's own logit is left out of every tile (it counts as -inf): its probability is 1 - (the rest), which stays
// accurate where it is close to 1, and its gradient is added by the caller in float32.
//
// Plain C interface for ctypes. Every function returns 0, or 1 with the reason in `head_error`.

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>

namespace {

using c10::BFloat16;
using at::native::cpublas::brgemm;

constexpr int64_t LANES = 16;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

constexpr float LOWEST = -200.0f;  // nats; exp is 0 in float32 below -104, and 0 * -inf would be NaN
constexpr float INF = std::numeric_limits<float>::infinity();

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void save(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

// Rounds to nearest, ties to even. NaN is not preserved: the float32 statistics carry it.
inline void save(BFloat16* to, Floats x) {
  const Ints bits = (Ints)x;
  const Halves rounded = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
  std::memcpy(to, &rounded, sizeof rounded);
}

inline Floats splat(float x) { return x - Floats{}; }
inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }

// exp to about one unit in the last place for x <= 88; 0 below -87.3, NaN for NaN.
inline Floats exponential(Floats x) {
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Floats shifted = x * 1.44269504088896341f + magic;
  const Floats n = shifted - magic;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Floats scaled = (Floats)((Ints)p + ((Ints)shifted << 23));
  return x < -87.3f ? Floats{} : (x == x ? scaled : x);
}

inline Floats hyperbolic_tangent(Floats x) {
  const Floats bounded = x > 20.0f ? splat(20.0f) : (x < -20.0f ? splat(-20.0f) : x);
  return 1.0f - 2.0f / (1.0f + exponential(2.0f * bounded));
}

inline float total(Floats x) {
  float sum = 0;
  for (int64_t i = 0; i < LANES; ++i) sum += x[i];
  return sum;
}

// Transposes a 16 x 16 block in registers: four rounds that swap the off-diagonal halves of ever smaller blocks.
template <int STEP>
inline void swap_halves(Floats (&x)[LANES]) {
  Ints low, high;
  for (int l = 0; l < LANES; ++l) {
    low[l] = (l & STEP) ? LANES + l - STEP : l;
    high[l] = (l & STEP) ? LANES + l : l + STEP;
  }
  for (int i = 0; i < LANES; ++i) {
    if (i & STEP) continue;
    const Floats a = x[i], b = x[i + STEP];
    x[i] = __builtin_shuffle(a, b, low);
    x[i + STEP] = __builtin_shuffle(a, b, high);
  }
}

inline void transpose(Floats (&x)[LANES]) {
  swap_halves<8>(x);
  swap_halves<4>(x);
  swap_halves<2>(x);
  swap_halves<1>(x);
}

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t size) {
    const size_t bytes = round_up(std::max<int64_t>(size, 1) * sizeof(T), 64);
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(static_cast<void*>(data_), 0, bytes);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* operator+(int64_t at) { return data_ + at; }
  T& operator[](int64_t at) { return data_[at]; }

 private:
  T* data_;
};

std::mutex error_lock;
std::string error_text;

void note_error(const char* what) {
  const std::lock_guard<std::mutex> guard(error_lock);
  error_text = what;
}

// Runs task(0) ... task(count - 1) in any order, every thread with a task of its own from make(). Nothing may leave a
// parallel region but by its end, so exceptions are caught inside: the first stops the others and is reported.
template <typename Make>
int in_parallel(int64_t threads, int64_t count, Make make) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
#pragma omp parallel num_threads(threads)
  {
    try {
      auto task = make();
      for (int64_t i = next++; i < count && !failed; i = next++) task(i);
      at::native::cpublas::brgemm_release();
    } catch (const std::exception& error) {
      note_error(error.what());
      failed = true;
    }
  }
  return failed ? 1 : 0;
}

}  // namespace

extern "C" {

// The arguments that every function shares; mirrored field by field in native.py.
struct Head {
  int64_t rows, vocab, width, threads;
  int64_t block;  // rows a tile, a multiple of 16
  int64_t tile;   // tokens of the vocabulary a tile, a multiple of 16
  float scale;    // 1 / temperature
  float cap;      // of the logits, before the temperature; 0: none
  const void* hidden;
  const void* weight;
  const float* bias;  // or null
  const int64_t* target;
  const float* shift;  // subtracted from a row's logits: any number not far below the largest; or log sum exp
};
}

namespace {

template <typename T>
constexpr bool PAIRED = sizeof(T) == 2;  // the kernels take a right operand of 16-bit numbers as pairs of rows

// The right operand B [depth, columns] from its rows, zero rows appended up to `depth_out`.
template <typename T>
void pack_rows(const T* from, int64_t depth, int64_t depth_out, int64_t columns, T* to) {
  if constexpr (!PAIRED<T>) {
    std::memcpy(static_cast<void*>(to), from, depth * columns * sizeof(T));
    std::memset(static_cast<void*>(to + depth * columns), 0, (depth_out - depth) * columns * sizeof(T));
  } else {
    const uint16_t* source = reinterpret_cast<const uint16_t*>(from);
    uint32_t* pairs = reinterpret_cast<uint32_t*>(to);
    for (int64_t k = 0; k < depth_out; k += 2, pairs += columns) {
      const uint16_t *a = source + k * columns, *b = a + columns;
      if (k + 1 < depth) {
        for (int64_t c = 0; c < columns; ++c) pairs[c] = a[c] | (static_cast<uint32_t>(b[c]) << 16);
      } else {
        for (int64_t c = 0; c < columns; ++c) pairs[c] = k < depth ? a[c] : 0;
      }
    }
  }
}

// The right operand B [depth, columns] from B^T [columns, depth], zero columns appended up to `columns_out`.
template <typename T>
void pack_columns(const T* from, int64_t columns, int64_t columns_out, int64_t depth, T* to) {
  using Word = std::conditional_t<PAIRED<T>, uint32_t, float>;  // a pair of 16-bit numbers moves as one word
  const int64_t words = depth * sizeof(T) / sizeof(Word);
  const Word* source = reinterpret_cast<const Word*>(from);
  Word* out = reinterpret_cast<Word*>(to);
  for (int64_t k = 0; k < words; ++k) {
    for (int64_t c = 0; c < columns; ++c) out[k * columns_out + c] = source[c * words + k];
    for (int64_t c = columns; c < columns_out; ++c) out[k * columns_out + c] = 0;
  }
}

template <typename T>
struct Tiles {
  const Head& head;
  const T* weight;
  const T* hidden;
  int64_t padded;      // rows, with those appended to fill the last 16
  Buffer<T> columns;   // hidden, as the right operand of the logits, block after block
  Buffer<float> shift;

  explicit Tiles(const Head& h)
      : head(h),
        weight(static_cast<const T*>(h.weight)),
        hidden(static_cast<const T*>(h.hidden)),
        padded(round_up(h.rows, LANES)),
        columns(padded * h.width),
        shift(padded) {
    std::fill(shift + 0, shift + padded, INF);  // appended rows have probability 0 everywhere, whatever the bias
    std::memcpy(shift + 0, h.shift, h.rows * sizeof(float));
    const auto pack = [&](int64_t i) {
      const int64_t r = i * h.block;
      pack_columns(hidden + r * h.width, std::min(h.block, h.rows - r), block_rows(r), h.width, columns + r * h.width);
    };
    in_parallel(h.threads, (h.rows + h.block - 1) / h.block, [&] { return pack; });
  }

  int64_t block_rows(int64_t first) const { return std::min(head.block, padded - first); }
  int64_t tile_tokens(int64_t first) const { return std::min(head.tile, head.vocab - first); }
  int64_t num_tiles() const { return (head.vocab + head.tile - 1) / head.tile; }

  // z [tokens, rows of the block]: logits with bias, cap and temperature; the targets' own are -inf. `slope` gets
  // dz / d(product) * temperature where there is a cap.
  void logits(int64_t v0, int64_t r0, float* z, float* slope) {
    const int64_t tokens = tile_tokens(v0), rows = block_rows(r0), width = head.width;
    brgemm(tokens, rows, width, width, rows, rows, false, weight + v0 * width, columns + r0 * width, z);
    if (head.bias != nullptr || head.cap > 0 || head.scale != 1.0f) {
      for (int64_t v = 0; v < tokens; ++v) {
        const float bias = head.bias != nullptr ? head.bias[v0 + v] : 0.0f;
        for (int64_t j = v * rows; j < (v + 1) * rows; j += LANES) {
          Floats x = load(z + j) + bias;
          if (head.cap > 0) {
            const Floats t = hyperbolic_tangent(x / head.cap);
            save(slope + j, 1.0f - t * t);
            x = head.cap * t;
          }
          save(z + j, x * head.scale);
        }
      }
    }
    for (int64_t j = 0; j < std::min(rows, head.rows - r0); ++j) {
      const int64_t y = head.target[r0 + j] - v0;
      if (y >= 0 && y < tokens) z[y * rows + j] = -INF;
    }
  }
};

}  // namespace

extern "C" {

// What `head_forward` returns; a null pointer is not computed. Leading dimension `splits`: the vocabulary's parts, to
// be added up by the caller.
struct Forward {
  int64_t splits, span;  // span: rows a thread works on at a time, a multiple of the block
  int64_t top_k;
  double* sums;      // [splits, 4, padded]: sum e, sum e d, sum e^2, sum e^2 d with d = z - shift, e = exp d
  float* peak;       // [splits, padded]: max d
  float* top;        // [padded, top_k]: the largest d in descending order; needs splits == 1
  float* mean;       // [splits, padded, width]: sum e slope w
  const float* a;    // [padded]; with b: `mean` sums e (a + b d) slope w instead
  const float* b;
  void* store;       // [vocab, padded]: e slope, in the type of hidden
  int64_t moments;   // whether to compute the last two sums
};
}

namespace {

void keep_largest(float* top, int64_t k, float d) {
  int64_t at = k - 1;
  for (; at > 0 && top[at - 1] < d; --at) top[at] = top[at - 1];
  top[at] = d;
}

template <typename T>
struct ForwardTask {
  Tiles<T>& tiles;
  const Forward& out;
  const Head& head = tiles.head;
  Buffer<float> z{head.tile * head.block};
  Buffer<float> slope{head.cap > 0 ? head.tile * head.block : 0};
  Buffer<T> e{head.tile * head.block};
  Buffer<T> rows_of_weight{(head.tile + 1) * head.width};

  void operator()(int64_t i) {
    const int64_t first_row = i / out.splits * out.span, split = i % out.splits;
    const int64_t last_row = std::min(first_row + out.span, tiles.padded);
    const int64_t tile_count = tiles.num_tiles();
    const int64_t from = tile_count * split / out.splits, to = tile_count * (split + 1) / out.splits;
    for (int64_t t = from; t < to; ++t) {
      const int64_t v0 = t * head.tile;
      const T* right = right_operand(v0);
      for (int64_t r0 = first_row; r0 < last_row; r0 += head.block) one(v0, r0, split, t == from, right);
    }
  }

  // The tile's weights as the right operand of `mean`: as they are for float.
  const T* right_operand(int64_t v0) {
    const T* rows = tiles.weight + v0 * head.width;
    if (!PAIRED<T> || out.mean == nullptr) return rows;
    const int64_t tokens = tiles.tile_tokens(v0);
    pack_rows(rows, tokens, round_up(tokens, 2), head.width, rows_of_weight + 0);
    return rows_of_weight + 0;
  }

  void one(int64_t v0, int64_t r0, int64_t split, bool first, const T* right) {
    const int64_t tokens = tiles.tile_tokens(v0), rows = tiles.block_rows(r0);
    tiles.logits(v0, r0, z + 0, slope + 0);
    for (int64_t j = 0; j < rows; j += LANES) {
      if (out.moments) statistics<true>(v0, r0, j, split);
      else statistics<false>(v0, r0, j, split);
    }
    if (out.top != nullptr) top_of(r0, tokens, rows);
    const int64_t depth = PAIRED<T> ? round_up(tokens, 2) : tokens;
    const int64_t at = (split * tiles.padded + r0) * head.width;
    if (out.mean != nullptr)
      brgemm(rows, head.width, depth, head.tile, head.width, head.width, !first, e + 0, right, out.mean + at);
  }

  // Sixteen rows of the block, all tokens of the tile: sums, and what `mean` weighs, turned into [rows, tokens].
  template <bool MOMENTS>
  void statistics(int64_t v0, int64_t r0, int64_t j, int64_t split) {
    const int64_t tokens = tiles.tile_tokens(v0), rows = tiles.block_rows(r0);
    const Floats shift = load(tiles.shift + r0 + j);
    const Floats a = out.a != nullptr ? load(out.a + r0 + j) : splat(1.0f);
    const Floats b = out.b != nullptr ? load(out.b + r0 + j) : Floats{};
    Floats sum{}, cross{}, square{}, square_cross{}, peak = splat(-INF);
    for (int64_t v = 0; v < tokens; v += LANES) {
      Floats block[LANES];
      Floats part{}, part_cross{};  // short sums of short sums round less
      const int64_t count = std::min(LANES, tokens - v);
      for (int64_t k = 0; k < LANES; ++k) {
        if (k >= count) {
          block[k] = Floats{};
          continue;
        }
        Floats d = load(z + (v + k) * rows + j) - shift;
        peak = largest(d, peak);
        d = d < LOWEST ? splat(LOWEST) : d;
        Floats x = exponential(d);
        part += x;
        const Floats xd = x * d;
        part_cross += xd;
        if (MOMENTS) {
          square += x * x;
          square_cross += x * xd;
        }
        block[k] = x * a + xd * b;
        if (head.cap > 0) block[k] *= load(slope + (v + k) * rows + j);
        if (out.store != nullptr) save(static_cast<T*>(out.store) + (v0 + v + k) * tiles.padded + r0 + j, block[k]);
      }
      sum += part;
      cross += part_cross;
      if (out.mean != nullptr) turn(block, e + j * head.tile + v);
    }
    double* sums = out.sums + split * 4 * tiles.padded + r0 + j;
    add(sums, sum);
    add(sums + tiles.padded, cross);
    if (MOMENTS) {
      add(sums + 2 * tiles.padded, square);
      add(sums + 3 * tiles.padded, square_cross);
    }
    float* highest = out.peak + split * tiles.padded + r0 + j;
    save(highest, largest(peak, load(highest)));
  }

  void turn(Floats (&block)[LANES], T* to) {
    transpose(block);
    for (int64_t k = 0; k < LANES; ++k) save(to + k * head.tile, block[k]);
  }

  static void add(double* to, Floats x) {
    for (int64_t i = 0; i < LANES; ++i) to[i] += x[i];
  }

  void top_of(int64_t r0, int64_t tokens, int64_t rows) {
    for (int64_t v = 0; v < tokens; ++v) {
      for (int64_t j = 0; j < std::min(rows, head.rows - r0); ++j) {
        const float d = z[v * rows + j] - tiles.shift[r0 + j];
        float* top = out.top + (r0 + j) * out.top_k;
        if (d > top[out.top_k - 1]) keep_largest(top, out.top_k, d);
      }
    }
  }
};

template <typename T>
int forward(const Head& head, const Forward& out) {
  Tiles<T> tiles(head);
  const int64_t spans = (tiles.padded + out.span - 1) / out.span;
  return in_parallel(head.threads, spans * out.splits, [&] { return ForwardTask<T>{tiles, out}; });
}

}  // namespace

extern "C" {

// The gradient of the weight for dz = -p (a + b log p) slope / temperature, with p = exp(z - shift): p must be a
// probability, so shift is log sum exp here.
struct Gradient {
  const float* a;  // [rows]
  const float* b;  // [rows] or null
  void* weight;    // [vocab, width] in the type of the weight
  float* bias;     // [vocab], or null
};

// The gradient of the weight from what `head_forward` stored: store [vocab, padded] x scaled [rows, width].
struct Product {
  int64_t rows, vocab, width, threads, block, tile;
  const void* store;
  const void* scaled;
  void* weight;  // [vocab, width]: float32, or (`narrow`) the type of the store
  int64_t add;   // to what is there, float32 only
  int64_t narrow;
};
}

namespace {

// hidden [rows, width] as the right operand of the weight's gradient, block after block; appended rows are zero.
template <typename T>
void pack_blocks(const T* from, int64_t rows, int64_t block, int64_t width, Buffer<T>& to) {
  const int64_t padded = round_up(rows, LANES);
  for (int64_t r = 0; r < rows; r += block)
    pack_rows(from + r * width, std::min(block, rows - r), std::min(block, padded - r), width, to + r * width);
}

inline void store_rows(const float* from, int64_t count, float* to) { std::memcpy(to, from, count * sizeof(float)); }

inline void store_rows(const float* from, int64_t count, BFloat16* to) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) save(to + i, load(from + i));
  for (; i < count; ++i) to[i] = from[i];
}

template <typename T>
struct GradientTask {
  Tiles<T>& tiles;
  Buffer<T>& right;
  const Gradient& out;
  const float *a, *b;  // padded with zeros
  const Head& head = tiles.head;
  Buffer<float> z{head.tile * head.block};
  Buffer<float> slope{head.cap > 0 ? head.tile * head.block : 0};
  Buffer<T> dz{head.tile * head.block};
  Buffer<float> sum{head.tile * head.width};

  void operator()(int64_t i) {
    const int64_t v0 = i * head.tile;
    const int64_t tokens = tiles.tile_tokens(v0), width = head.width;
    for (int64_t r0 = 0; r0 < tiles.padded; r0 += head.block) {
      const int64_t rows = tiles.block_rows(r0);
      tiles.logits(v0, r0, z + 0, slope + 0);
      for (int64_t v = 0; v < tokens; ++v) {
        const float part = fill(v, r0, rows);
        if (out.bias != nullptr) out.bias[v0 + v] += part;
      }
      brgemm(tokens, width, rows, rows, width, width, r0 > 0, dz + 0, right + r0 * width, sum + 0);
    }
    store_rows(sum + 0, tokens * width, static_cast<T*>(out.weight) + v0 * width);
  }

  // One token of the vocabulary, all rows of the block; returns the sum of dz.
  float fill(int64_t v, int64_t r0, int64_t rows) {
    Floats part{};
    for (int64_t j = 0; j < rows; j += LANES) {
      const Floats log_p = load(z + v * rows + j) - load(tiles.shift + r0 + j);
      Floats factor = load(a + r0 + j);
      if (b != nullptr) factor += load(b + r0 + j) * (log_p < LOWEST ? splat(LOWEST) : log_p);
      if (head.cap > 0) factor *= load(slope + v * rows + j);
      const Floats value = exponential(log_p) * factor * -head.scale;
      part += value;
      save(dz + v * rows + j, value);
    }
    return out.bias != nullptr ? total(part) : 0.0f;
  }
};

template <typename T>
int gradient(const Head& head, const Gradient& out) {
  Tiles<T> tiles(head);
  Buffer<T> right(tiles.padded * head.width);
  pack_blocks(tiles.hidden, head.rows, head.block, head.width, right);
  Buffer<float> a(tiles.padded), b(tiles.padded);
  std::memcpy(a + 0, out.a, head.rows * sizeof(float));
  if (out.b != nullptr) std::memcpy(b + 0, out.b, head.rows * sizeof(float));
  const float* slopes = out.b != nullptr ? b + 0 : nullptr;
  return in_parallel(head.threads, tiles.num_tiles(), [&] {
    return GradientTask<T>{tiles, right, out, a + 0, slopes};
  });
}

template <typename T>
struct ProductTask {
  const Product& p;
  Buffer<T>& right;
  Buffer<float> sum{p.narrow ? p.tile * p.width : 0};

  void operator()(int64_t i) {
    const int64_t v0 = i * p.tile, tokens = std::min(p.tile, p.vocab - v0), padded = round_up(p.rows, LANES);
    const T* store = static_cast<const T*>(p.store) + v0 * padded;
    float* to = p.narrow ? sum + 0 : static_cast<float*>(p.weight) + v0 * p.width;
    for (int64_t r0 = 0; r0 < padded; r0 += p.block) {
      const int64_t rows = std::min(p.block, padded - r0);
      brgemm(tokens, p.width, rows, padded, p.width, p.width, p.add || r0 > 0, store + r0, right + r0 * p.width, to);
    }
    if (p.narrow) store_rows(to, tokens * p.width, static_cast<T*>(p.weight) + v0 * p.width);
  }
};

template <typename T>
int product(const Product& p) {
  Buffer<T> right(round_up(p.rows, LANES) * p.width);
  pack_blocks(static_cast<const T*>(p.scaled), p.rows, p.block, p.width, right);
  const int64_t tiles = (p.vocab + p.tile - 1) / p.tile;
  return in_parallel(p.threads, tiles, [&] { return ProductTask<T>{p, right}; });
}

template <typename Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    note_error(error.what());
    return 1;
  }
}

}  // namespace

extern "C" {

int head_forward(int bfloat16, const Head* head, const Forward* out) {
  return guarded([&] { return bfloat16 ? forward<BFloat16>(*head, *out) : forward<float>(*head, *out); });
}

int head_gradient(int bfloat16, const Head* head, const Gradient* out) {
  return guarded([&] { return bfloat16 ? gradient<BFloat16>(*head, *out) : gradient<float>(*head, *out); });
}

int head_product(int bfloat16, const Product* p) {
  return guarded([&] { return bfloat16 ? product<BFloat16>(*p) : product<float>(*p); });
}

const char* head_error() { return error_text.c_str(); }
}
