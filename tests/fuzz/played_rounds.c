/* Plays meshes of made-up sizes with arrays of just their sizes, for a build that watches memory (-fsanitize). */

#include <stdio.h>
#include <stdlib.h>

#include "packets.c"

static uint32_t seed = 1;

static int64_t any(int64_t least, int64_t most) {
    seed = seed * 1664525u + 1013904223u;
    return least + (seed >> 8) % (most - least + 1);
}

static void *room(int64_t count) {
    void *found = malloc((size_t)(count ? count : 1) * 8);
    if (!found) exit(3);
    return found;
}

static double *filled(int64_t count, double value) {
    double *found = room(count);
    while (count--) found[count] = value;
    return found;
}

/* How many rounds move all bytes of a mesh; -1 if one moves none, or a link or a NIC more than it can. */
static int64_t rounds_of(int64_t ranks, int64_t links) {
    const int64_t pairs = ranks * (ranks - 1) / 2, both = 2 * pairs;
    const double size = (double)any(1, 30), limit = size * any(4, 40) / 4, link = size * any(4, 20) / 4;
    int64_t *ends = room(both), i, count = 0;
    double *rate = filled(pairs, link), *rest = filled(both, 0), left = 0;
    for (i = 0; i < pairs; i++) ends[i] = i % ranks, ends[pairs + i] = (i % ranks + i / ranks + 1) % ranks;
    for (i = 0; i < both; i++) left += rest[i] = (double)any(0, 300);
    for (; left > 0 && count >= 0; count++) {
        double *used = filled(links * both, 0), *packets = filled(links * both, 0), now = 0;
        double *to_send = filled(ranks, limit), *to_receive = filled(ranks, limit);
        Mesh mesh = { pairs, links, size, (double)any(1, 6), ends, rate, rest, used, packets, to_send, to_receive };
        tracelens_round(&mesh, count % 2);
        for (i = 0; i < both; i++) now += rest[i];
        for (i = 0; i < links * both; i++) if (used[i] > link || used[i] > packets[i] * size) now = left;
        for (i = 0; i < ranks; i++) if (to_send[i] < 0 || to_receive[i] < 0) now = left;
        if (now >= left) count = -2;
        left = now;
        free(used), free(packets), free(to_send), free(to_receive);
    }
    free(ends), free(rate), free(rest);
    return count;
}

/* Prints how many rounds all meshes of up to nine ranks and three links took. */
int main(void) {
    int64_t ranks, links, times, all = 0;
    for (ranks = 1; ranks <= 9; ranks++)
        for (links = 1; links <= 3; links++)
            for (times = 0; times < 20; times++) {
                int64_t rounds = rounds_of(ranks, links);
                if (rounds < 0) return 4;
                all += rounds;
            }
    printf("%lld\n", (long long)all);
    return 0;
}
