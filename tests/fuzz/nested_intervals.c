/* Nests made-up intervals with arrays of just their sizes, for a build that watches memory (-fsanitize). */

#include <stdio.h>
#include <stdlib.h>

#include "nest.c"

static uint32_t seed = 1;

static int64_t any(int64_t most) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % (most + 1);
}

static void *room(int64_t count, size_t size) {
    void *found = calloc((size_t)(count ? count : 1), size);
    if (!found) exit(3);
    return found;
}

/* How many of n intervals lie in another one; -1 where a parent, a subtree or an ancestor is none. */
static int64_t nested(int64_t n, int64_t span) {
    int64_t *key = room(n, 8), *start = room(n, 8), *outlived = room(n, 8), i, now = 0, count = 0;
    int32_t *parent = room(n, 4), *last = room(n, 4), *depth = room(n, 4), *found = room(n, 4);
    uint8_t *begins = room(n, 1), *overlaps = room(n, 1), *wanted = room(n, 1);
    for (i = 0; i < n; i++) {
        begins[i] = (uint8_t)!any(9), wanted[i] = (uint8_t)any(1);
        now = begins[i] ? 0 : now + any(3);
        start[i] = now, key[i] = any(19) ? 2 * (now + any(span)) : INT64_MAX - any(1);
    }
    tracelens_nest(n, key, start, begins, parent, last, depth, overlaps, outlived);
    tracelens_nearest(n, parent, wanted, found);
    for (i = 0; i < n && count >= 0; i++) {
        int32_t above = parent[i];
        if (above >= i || last[i] <= i || last[i] > n || (above >= 0 && (key[above] < key[i] || last[i] > last[above])))
            count = -1;
        else if (depth[i] != (above < 0 ? 0 : depth[above] + 1) || (found[i] >= 0 && !wanted[found[i]]))
            count = -1;
        else
            count += above >= 0;
    }
    free(key), free(start), free(outlived), free(parent), free(last), free(depth), free(found);
    free(begins), free(overlaps), free(wanted);
    return count;
}

/* Prints how many intervals lay in another one. */
int main(void) {
    int64_t n, span, all = 0;
    for (n = 0; n <= 200; n++)
        for (span = 0; span <= 60; span += 12) {
            int64_t count = nested(n, span);
            if (count < 0) return 4;
            all += count;
        }
    printf("%lld\n", (long long)all);
    return 0;
}
