/* Scans every piece of a file with arrays of just their sizes, for a build that watches memory (-fsanitize). */

#include <stdio.h>
#include <stdlib.h>

#include "scan_events.c"

static void *room(int64_t count, size_t size) {
    void *found = malloc((size_t)(count ? count : 1) * size);
    if (!found) exit(3);
    return found;
}

static Table table(int64_t most) {
    Table t = { .slots = 1, .most = most };
    while (t.slots < 2 * most) t.slots *= 2;
    t.spans = room(most, sizeof(Span)), t.hash = room(most, 8), t.slot = room(t.slots, 4);
    return t;
}

static void free_table(Table t) { free(t.spans), free(t.hash), free(t.slot); }

static int32_t scan_with(const uint8_t *piece, int64_t length, int64_t events, int64_t few, int text_times) {
    Scan s = { 0 };
    int32_t state;
    uint8_t *text = room(length, 1);
    memcpy(text, piece, (size_t)length);
    s.text = text, s.length = length, s.text_times = text_times, s.seed = 7;
    s.most_events = events, s.most_labels = few, s.most_joined = length;
    s.phase = room(events, 1);
    s.category = room(events, 4), s.name = room(events, 4), s.lane = room(events, 4), s.signature = room(events, 4);
    s.start_ns = room(events, 8), s.duration_ns = room(events, 8), s.id = room(events, 8);
    s.numbers = room(NUMBERS * events, 8);
    s.strings = table(few), s.lanes = table(few), s.signatures = table(few);
    s.pairs = room(2 * (few + 1), 4), s.joined = room(length, 1);
    s.label_event = room(few, 4), s.labels = room(2 * few, sizeof(Span));
    state = tracelens_scan(&s);
    free(text), free(s.phase), free(s.category), free(s.name), free(s.lane), free(s.signature), free(s.start_ns);
    free(s.duration_ns), free(s.id), free(s.numbers), free_table(s.strings), free_table(s.lanes);
    free_table(s.signatures), free(s.pairs), free(s.joined), free(s.label_event), free(s.labels);
    return state;
}

/* The file: of each piece its length as four bytes, the lowest first, and its text. Prints how many were plain. */
int main(int count, char **words) {
    FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
    uint8_t head[4];
    int plain = 0;
    if (!file) return 2;
    while (fread(head, 1, 4, file) == 4) {
        int64_t length = head[0] | head[1] << 8 | head[2] << 16 | (int64_t)head[3] << 24;
        uint8_t *piece = room(length, 1);
        int text_times;
        if (fread(piece, 1, (size_t)length, file) != (size_t)length) return 2;
        for (text_times = 0; text_times < 2; text_times++) {
            plain += scan_with(piece, length, length / 24 + 1, 4096, text_times) == DONE;
            scan_with(piece, length, 2, 4, text_times);
        }
        free(piece);
    }
    printf("%d\n", plain);
    return 0;
}
