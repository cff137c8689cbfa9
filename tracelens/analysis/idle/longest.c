/* Longest paths through dependencies that stand in an order in which they lead forward; longest.py has the same. */

#include <math.h>
#include <stdint.h>

#define LAYOUT 1
/* Of times in ns: what is nearer than that is equal. */
#define NEAR 1e-3

int32_t tracelens_layout(void) { return LAYOUT; }

/* time: of each node the earliest it can be by itself, INT64_MIN for one that only follows others; then when it is. */
void tracelens_longest(int64_t edges, const int64_t *source, const int64_t *target, const int64_t *length, int64_t *time) {
    int64_t e;
    for (e = 0; e < edges; e++) {
        int64_t from = time[source[e]], reached;
        if (from == INT64_MIN) continue;
        reached = from + length[e];
        if (reached > time[target[e]]) time[target[e]] = reached;
    }
}

/* The largest mean weight of the cycles of a graph in which each of n nodes has one predecessor or -1. */
static double largest_mean(int64_t n, const int64_t *before, const double *weight, int64_t *seen) {
    double best = -INFINITY;
    int64_t i;
    for (i = 0; i < n; i++) seen[i] = -1;
    for (i = 0; i < n; i++) {
        int64_t at = i;
        while (at >= 0 && seen[at] < 0) { seen[at] = i; at = before[at]; }
        if (at >= 0 && seen[at] == i) {
            int64_t first = at, count = 0;
            double sum = 0;
            do { sum += weight[at]; count++; at = before[at]; } while (at != first);
            if (sum / count > best) best = sum / count;
        }
    }
    return best;
}

/* How long a round takes, in the long run, of what is done again and again: the largest mean length of the cycles that
 * lead from a node of a round along `edges`, and along `ways` from one round to the next. `lead`: of each way how much
 * later than others its target begins, to start from and as found. time, from: room for a figure per node; before,
 * weight, seen: room for one per way. */
double tracelens_period(
    int64_t nodes, int64_t edges, const int64_t *source, const int64_t *target, const int64_t *length,
    int64_t ways, const int64_t *last, const int64_t *first, const int64_t *across, double *lead,
    double *time, int64_t *from, int64_t *before, double *weight, int64_t *seen
) {
    double period = 0;
    int64_t round, e, w;
    for (round = 0; round < 4 * ways + 4; round++) {
        int changed = 0;
        double found;
        for (e = 0; e < nodes; e++) { time[e] = -INFINITY; from[e] = -1; }
        for (w = 0; w < ways; w++)
            if (lead[w] > time[first[w]]) { time[first[w]] = lead[w]; from[first[w]] = w; }
        for (e = 0; e < edges; e++) {
            double reached = time[source[e]] + (double)length[e];
            if (reached > time[target[e]]) { time[target[e]] = reached; from[target[e]] = from[source[e]]; }
        }
        for (w = 0; w < ways; w++) {
            before[w] = from[last[w]];
            weight[w] = before[w] < 0 ? 0 : time[last[w]] + (double)across[w] - lead[before[w]];
        }
        found = largest_mean(ways, before, weight, seen);
        if (found > period + NEAR) { period = found; changed = 1; }
        for (w = 0; w < ways; w++) {
            double reached;
            if (before[w] < 0) continue;
            reached = time[last[w]] + (double)across[w] - period;
            if (reached > lead[w] + NEAR) { lead[w] = reached; changed = 1; }
        }
        if (!changed) break;
    }
    return period;
}
