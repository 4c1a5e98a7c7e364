/* What one core does at most, of what the kernels do: products of bytes, products of floats, reading.
   Twelve sums that don't wait for each other: more than an instruction takes cycles, on two ports. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512VNNI__)
#define BYTES 64 /* products of an instruction */
typedef __m512i Vector;
static Vector step(Vector sum, Vector x, Vector w) { return _mm512_dpbusd_epi32(sum, x, w); }
#elif defined(__AVX2__)
#define BYTES 16
typedef __m256i Vector;
static Vector step(Vector sum, Vector x, Vector w) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(x, w));
}
#endif

#if defined(__AVX512F__)
typedef __m512 Floats;
static Floats product(Floats sum, Floats x, Floats w) { return _mm512_fmadd_ps(x, w, sum); }
#else
typedef __m256 Floats;
static Floats product(Floats sum, Floats x, Floats w) { return _mm256_fmadd_ps(x, w, sum); }
#endif

/* Twelve times, with a number each: sums in an array would be kept in memory. */
#define TWELVE(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define DECLARE(j) sum##j = x,
#define HIDE(j) __asm__ volatile("" : "+x"(sum##j)); /* not known to be equal: one would do */
#define STORE(j) memcpy((char *)kept + j * sizeof x, &sum##j, sizeof x);

#define MULTIPLY(j) sum##j = _Generic(x, Vector: step, Floats: product)(sum##j, x, w);

/* A function that multiplies vectors of a type; returns how many products there were. */
#define PRODUCTS(name, Type, products_of_vector)                                            \
  int64_t name(int64_t steps, void *kept) {                                                 \
    Type x, w;                                                                              \
    memset(&x, 0, sizeof x), memset(&w, 0, sizeof w);                                       \
    Type TWELVE(DECLARE) none = x;                                                          \
    TWELVE(HIDE)                                                                            \
    for (int64_t i = 0; i < steps; ++i) {                                                   \
      TWELVE(MULTIPLY)                                                                      \
      __asm__ volatile("" : "+x"(x), "+x"(w)); /* not known to be the same in the next step */ \
    }                                                                                       \
    TWELVE(STORE)                                                                           \
    (void)none;                                                                             \
    return steps * 12 * (int64_t)(products_of_vector);                                      \
  }

PRODUCTS(bytes_multiplied, Vector, BYTES)
PRODUCTS(floats_multiplied, Floats, sizeof(Floats) / sizeof(float))

/* Reads whole vectors; returns how many bytes. */
int64_t bytes_read(const float *from, int64_t bytes, void *kept) {
  const int64_t floats = sizeof(Floats) / sizeof(float), vectors = bytes / sizeof(Floats);
  Floats x;
  memset(&x, 0, sizeof x);
  Floats TWELVE(DECLARE) none = x;
  TWELVE(HIDE)
  int64_t i = 0;
  for (; i + 12 <= vectors; i += 12) {
    const float *at = from + i * floats;
#define READ(j) memcpy(&x, at + j * floats, sizeof x), sum##j = sum##j + x;
    TWELVE(READ)
  }
  TWELVE(STORE)
  (void)none;
  return i * (int64_t)sizeof(Floats);
}
