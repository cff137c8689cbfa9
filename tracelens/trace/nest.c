/* Nests intervals that stand in preorder, in one pass each way; nesting.py has the same without a loop over intervals. */

#include <stdint.h>

#define LAYOUT 3

int32_t tracelens_layout(void) { return LAYOUT; }

/* For each interval i of n: parent[i], the nearest earlier one of its lane with key[parent] >= key[i], or -1; last[i],
 * the end of its subtree, exclusive; depth[i], how many ancestors it has; overlaps[i], whether one between the two ends
 * after start[i], and outlived[i], the end of the last of those (keys are ends times 2, and 1 more for no length).
 * A lane begins where begins[i] is 1; where it is 2, i lies beside the one before, of which it is no child. overlaps and
 * outlived hold 0. */
void tracelens_nest(
    int64_t n, const int64_t *key, const int64_t *start, const uint8_t *begins,
    int32_t *parent, int32_t *last, int32_t *depth, uint8_t *overlaps, int64_t *outlived
) {
    int32_t i;
    for (i = 0; i < n; i++) {
        int64_t largest = INT64_MIN;
        int32_t above = begins[i] == 1 ? -1 : begins[i] == 2 ? parent[i - 1] : i - 1;
        while (above >= 0 && key[above] < key[i]) {
            if (key[above] > largest) largest = key[above];
            above = parent[above];
        }
        parent[i] = above;
        if (largest != INT64_MIN && (largest >> 1) > start[i]) {
            overlaps[i] = 1;
            outlived[i] = largest >> 1;
        }
        last[i] = i + 1;
        depth[i] = above < 0 ? 0 : depth[above] + 1;
    }
    for (i = (int32_t)n - 1; i >= 0; i--)
        if (parent[i] >= 0 && last[parent[i]] < last[i]) last[parent[i]] = last[i];
}

/* For each of n nodes the nearest strict ancestor that is wanted, -1 without one; a parent comes before its children. */
void tracelens_nearest(int64_t n, const int32_t *parent, const uint8_t *wanted, int32_t *found) {
    int32_t i;
    for (i = 0; i < n; i++) found[i] = parent[i] < 0 || wanted[parent[i]] ? parent[i] : found[parent[i]];
}
