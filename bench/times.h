// The clock that the backend and the load share, and a series of times of which quantiles are told.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
  uint32_t *values;  // unit: 0.1 us
  size_t count, room;
} series;

static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline void note(series *s, int64_t ns) {
  if (s->count == s->room) s->values = realloc(s->values, (s->room = s->room * 2 + 1024) * sizeof *s->values);
  s->values[s->count++] = ns < 0 ? 0 : ns / 100;
}

static inline int by_size(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static inline double quantile_us(const series *s, int percent) {
  return s->count ? s->values[s->count * percent / 100] / 10.0 : 0.0;
}

// Print a series as two members of a JSON object.
static inline void print_series(const char *name, series *s) {
  qsort(s->values, s->count, sizeof *s->values, by_size);
  printf(", \"%s_p50\": %.1f, \"%s_p99\": %.1f", name, quantile_us(s, 50), name, quantile_us(s, 99));
}
