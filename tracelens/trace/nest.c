/* Nests intervals that stand in preorder, in one pass each way; nesting.py has the same without a loop over intervals. */

#include <stdint.h>

#define LAYOUT 1

int32_t tracelens_layout(void) { return LAYOUT; }

/* For each interval i of n: parent[i], the nearest earlier one of its lane with key[parent] >= key[i], or -1; passed[i],
 * the largest key between the two, or INT64_MIN; last[i], the end of its subtree, exclusive; depth[i], how many
 * ancestors it has. A lane begins where begins[i] is not 0. */
void tracelens_nest(
    int64_t n, const int64_t *key, const uint8_t *begins, int64_t *parent, int64_t *passed, int64_t *last, int32_t *depth
) {
    int64_t i;
    for (i = 0; i < n; i++) {
        int64_t largest = INT64_MIN, above = begins[i] ? -1 : i - 1;
        while (above >= 0 && key[above] < key[i]) {
            if (key[above] > largest) largest = key[above];
            above = parent[above];
        }
        parent[i] = above;
        passed[i] = largest;
        last[i] = i + 1;
        depth[i] = above < 0 ? 0 : depth[above] + 1;
    }
    for (i = n - 1; i >= 0; i--)
        if (parent[i] >= 0 && last[parent[i]] < last[i]) last[parent[i]] = last[i];
}
