/* Scans every piece of a file with arrays of just their sizes, for a build that watches memory (-fsanitize). */

#include <stdio.h>
#include <stdlib.h>

#include "scan_events.c"

static void *room(int64_t count, size_t size) {
    void *found = malloc((size_t)(count ? count : 1) * size);
    if (!found) exit(3);
    return found;
}

static int32_t scan_with(const uint8_t *piece, int64_t length, int64_t events, int64_t few, int text_times) {
    Scan s = { 0 };
    int32_t state;
    uint8_t *text = room(length, 1);
    memcpy(text, piece, (size_t)length);
    s.text = text, s.length = length, s.text_times = text_times, s.seed = 7;
    s.most_events = events, s.most_strings = s.most_lanes = s.most_signatures = s.most_labels = few;
    s.most_joined = length;
    for (s.string_slots = 1; s.string_slots < 2 * few;) s.string_slots *= 2;
    s.lane_slots = s.signature_slots = s.string_slots;
    s.phase = room(events, 1);
    s.category = room(events, 4), s.name = room(events, 4), s.lane = room(events, 4), s.signature = room(events, 4);
    s.start_ns = room(events, 8), s.duration_ns = room(events, 8), s.id = room(events, 8);
    s.numbers = room(NUMBERS * events, 8);
    s.strings = room(few, sizeof(Span)), s.string_hash = room(few, 8), s.string_slot = room(s.string_slots, 4);
    s.lanes = room(2 * few, 4), s.lane_slot = room(s.lane_slots, 4);
    s.joined = room(length, 1), s.signatures = room(few, sizeof(Span)), s.signature_hash = room(few, 8);
    s.signature_slot = room(s.signature_slots, 4);
    s.label_event = room(few, 4), s.labels = room(2 * few, sizeof(Span));
    state = tracelens_scan(&s);
    free(text), free(s.phase), free(s.category), free(s.name), free(s.lane), free(s.signature), free(s.start_ns);
    free(s.duration_ns), free(s.id), free(s.numbers), free(s.strings), free(s.string_hash), free(s.string_slot);
    free(s.lanes), free(s.lane_slot), free(s.joined), free(s.signatures), free(s.signature_hash);
    free(s.signature_slot), free(s.label_event), free(s.labels);
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
