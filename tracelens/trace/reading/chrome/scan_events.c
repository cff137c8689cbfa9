/* Columns of one piece of a Chrome trace's event list, for pieces in which every value is of its usual type.
 *
 * What is written plainly here is most of every trace. Of anything else (another type, a key twice, an escaped key, a
 * begin or end event, text that is no JSON) the scan says NOT_PLAIN, nothing it wrote is used, and decoded_events.py
 * reads the piece. So this file needs to know no more than what it accepts, and accepts less than that does.
 *
 * It calls no allocator and keeps nothing: all arrays are the caller's, with their lengths, and no position is read at
 * or behind `length`. Places in the text are 32-bit: a piece has less than 2 GB. scanned_events.py has the same layout.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LAYOUT 3

enum { DONE = 0, NOT_PLAIN = 1, NEEDS_TEXT_TIMES = 2, LIST_ENDS = 3 };

/* Whole numbers of an event's arguments that become columns, in the order of NUMBERS in scanned_events.py. */
enum {
    CORRELATION, EXTERNAL_ID, OLD_EXTERNAL_ID, SEQUENCE_NUMBER, WAIT_ON_STREAM, WAIT_ON_RECORD,
    BYTES, ALLOCATED, RESERVED, DEVICE_TYPE, DEVICE_ID, GRAPH, GRAPH_NODE, STREAM, DEVICE, NUMBERS
};
/* Arguments whose text makes a signature, in the order of SIGNATURE_FIELDS in decoded_events.py. */
enum {
    DIMS, TYPES, STRIDES, SCALARS, COLLECTIVE, RECEIVER, GROUP_SIZE, IN_ELEMENTS, IN_SPLIT, OUT_ELEMENTS, OUT_SPLIT,
    GROUP_DESCRIPTION, GROUP_NAME, GROUP_RANKS, SENDER, COPIED, DTYPE, KERNEL_BACKEND, KERNEL_FLOP, KERNEL_KWARGS,
    KERNEL_NUM_GB, OLD_DIMS, TEXTS
};
/* Further places of text: what a metadata event says. */
enum { LABEL_NAME = TEXTS, LABELS, SPANS };

#define FIRST_PARTS ((1u << DIMS) | (1u << TYPES) | (1u << STRIDES) | (1u << SCALARS))
#define SHAPED ((1u << DIMS) | (1u << TYPES) | (1u << SCALARS))
#define ATTRIBUTED ((1u << COLLECTIVE) | (1u << KERNEL_BACKEND) | (1u << IN_ELEMENTS) | (1u << GROUP_SIZE) | \
                    (1u << GROUP_NAME) | (1u << KERNEL_NUM_GB) | (1u << KERNEL_FLOP) | (1u << OLD_DIMS))

/* A stream or device recorded as text: this and the number of the string. */
#define TEXT_NUMBER INT64_MIN
#define NO_TIME INT64_MIN
#define FLOAT_TIME_LIMIT_US ((uint64_t)1 << 43)
#define TIME_LIMIT_US 4611686018427387u     /* 2**62 ns */
/* A whole number of so many digits fits into 64 bits; one of a time may have one more, without its sign. */
#define MOST_DIGITS 18
#define MOST_TIME_DIGITS 19
#define MOST_DEPTH 64
/* So many strings in one row of the table, which a stranger can provoke: a dictionary reads the piece then. */
#define MOST_PROBES 64

#define PAIR_BYTES 8

typedef struct { int32_t start, length; } Span;

/* Bytes that have numbers: where each is, and in which slots, a power of two, to look for it. */
typedef struct {
    int64_t slots, most, found;
    Span *spans;
    uint64_t *hash;
    int32_t *slot;
} Table;

typedef struct {
    const uint8_t *text;
    int64_t length;
    int64_t text_times;
    uint64_t seed;
    int64_t most_events, most_joined, most_labels;
    uint8_t *phase;
    int32_t *category, *name, *lane, *signature;
    int64_t *start_ns, *duration_ns, *id;
    int64_t *numbers; /* NUMBERS rows of most_events */
    Table strings, lanes, signatures; /* in `text`, `pairs` and `joined` */
    int32_t *pairs; /* two strings for each lane, and room for one more */
    uint8_t *joined; /* the texts of signatures */
    int32_t *label_event;
    Span *labels; /* name and labels of each */
    int64_t events_found, joined_length, labels_found, end;
} Scan;

typedef struct {
    const uint8_t *p, *end;
} Cursor;

static int is_blank(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static inline void skip_blank(Cursor *c) {
    if (c->p < c->end && *c->p > ' ') return;
    while (c->p < c->end && is_blank(*c->p)) c->p++;
}

static inline int takes(Cursor *c, uint8_t expected) {
    if (c->p < c->end && *c->p == expected) {
        c->p++;
        return 1;
    }
    skip_blank(c);
    if (c->p == c->end || *c->p != expected) return 0;
    c->p++;
    return 1;
}

static int is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static int is_hex(uint8_t c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* Eight bytes at once: where the first quote, backslash or control character is, as the lowest bit that is set. */
static uint64_t special(uint64_t v) {
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t quote = v ^ (ones * '"'), backslash = v ^ (ones * '\\');
    return (((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((v - ones * 0x20) & ~v)) & high;
}

/* Whether the text goes on with that of `span`, and `after` behind it. */
static inline int goes_on_as(const Cursor *c, const uint8_t *text, Span span, uint8_t after) {
    const uint8_t *known = text + span.start;
    int32_t i = 0;
    if (c->end - c->p <= span.length || c->p[span.length] != after) return 0;
    for (; i + 8 <= span.length; i += 8) {
        uint64_t a, b;
        memcpy(&a, known + i, 8);
        memcpy(&b, c->p + i, 8);
        if (a != b) return 0;
    }
    for (; i < span.length; i++)
        if (known[i] != c->p[i]) return 0;
    return 1;
}

/* From behind the opening quote to behind the closing one; 0 for text that is no string. */
static int skip_string(Cursor *c, Span *inside, const uint8_t *text, int *is_escaped) {
    const uint8_t *p = c->p, *end = c->end, *start = p;
    int escaped = 0;
    for (;;) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        while (end - p >= 8) {
            uint64_t eight;
            memcpy(&eight, p, 8);
            if ((eight = special(eight))) {
                p += __builtin_ctzll(eight) >> 3;
                break;
            }
            p += 8;
        }
#endif
        if (p == end || *p < 0x20) return 0;
        if (*p == '"') break;
        if (*p++ != '\\') continue;
        escaped = 1;
        if (p == end) return 0;
        switch (*p++) {
        case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't': break;
        case 'u':
            if (end - p < 4 || !is_hex(p[0]) || !is_hex(p[1]) || !is_hex(p[2]) || !is_hex(p[3])) return 0;
            if ((p[0] | 32) == 'd' && p[1] >= '8') return 0; /* half a character, which may lack the other */
            p += 4;
            break;
        default: return 0;
        }
    }
    inside->start = (int32_t)(start - text);
    inside->length = (int32_t)(p - start);
    *is_escaped = escaped;
    c->p = p + 1;
    return 1;
}

static int skip_number(Cursor *c) {
    const uint8_t *p = c->p, *end = c->end, *digits;
    if (p < end && *p == '-') p++;
    digits = p;
    while (p < end && is_digit(*p)) p++;
    if (p == digits || (*digits == '0' && p - digits > 1)) return 0;
    if (p < end && *p == '.') {
        digits = ++p;
        while (p < end && is_digit(*p)) p++;
        if (p == digits) return 0;
    }
    if (p < end && (*p | 32) == 'e') {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        digits = p;
        while (p < end && is_digit(*p)) p++;
        if (p == digits || p - digits > 2) return 0;
    }
    c->p = p;
    return 1;
}

static int skip_word(Cursor *c, const char *word, int length) {
    if (c->end - c->p < length || memcmp(c->p, word, (size_t)length)) return 0;
    c->p += length;
    return 1;
}

static int skip_value(Cursor *c, const uint8_t *text, int depth) {
    Span span;
    int escaped;
    skip_blank(c);
    if (c->p == c->end || depth > MOST_DEPTH) return 0;
    switch (*c->p) {
    case '"':
        c->p++;
        return skip_string(c, &span, text, &escaped);
    case '[':
        c->p++;
        if (takes(c, ']')) return 1;
        do {
            if (!skip_value(c, text, depth + 1)) return 0;
        } while (takes(c, ','));
        return takes(c, ']');
    case '{':
        c->p++;
        if (takes(c, '}')) return 1;
        do {
            if (!takes(c, '"') || !skip_string(c, &span, text, &escaped) || !takes(c, ':')) return 0;
            if (!skip_value(c, text, depth + 1)) return 0;
        } while (takes(c, ','));
        return takes(c, '}');
    case 't': return skip_word(c, "true", 4);
    case 'f': return skip_word(c, "false", 5);
    case 'n': return skip_word(c, "null", 4);
    default: return skip_number(c);
    }
}

/* What may follow on a number that is whole, and whole numbers are all that is read so. */
static inline int goes_on(const Cursor *c) {
    uint8_t next = c->p < c->end ? *c->p : 0;
    return is_digit(next) || next == '.' || (next | 32) == 'e';
}

static int read_whole(Cursor *c, int64_t *value) {
    const uint8_t *first, *most;
    int64_t number = 0;
    int negative;
    skip_blank(c);
    negative = c->p < c->end && *c->p == '-';
    first = c->p += negative;
    most = c->end - first > MOST_DIGITS ? first + MOST_DIGITS : c->end;
    while (c->p < most && is_digit(*c->p)) number = 10 * number + (*c->p++ - '0');
    if (c->p == first || (*first == '0' && c->p - first > 1) || goes_on(c)) return 0;
    *value = negative ? -number : number;
    return 1;
}

/* A number of µs as digits; no exponent. */
typedef struct { uint64_t digits; int decimals, negative; } Decimal;

static int read_decimal(Cursor *c, Decimal *value) {
    const uint8_t *first, *most, *point = NULL;
    uint64_t digits = 0;
    skip_blank(c);
    value->negative = c->p < c->end && *c->p == '-';
    first = c->p += value->negative;
    /* one more for the point */
    most = c->end - first > MOST_TIME_DIGITS + 1 ? first + MOST_TIME_DIGITS + 1 : c->end;
    while (c->p < most && is_digit(*c->p)) digits = 10 * digits + (uint64_t)(*c->p++ - '0');
    if (c->p == first || (*first == '0' && c->p - first > 1)) return 0;
    if (c->p < most && *c->p == '.') {
        point = ++c->p;
        while (c->p < most && is_digit(*c->p)) digits = 10 * digits + (uint64_t)(*c->p++ - '0');
        if (c->p == point) return 0;
    }
    if (goes_on(c) || c->p - first - (point != NULL) > MOST_TIME_DIGITS) return 0;
    value->digits = digits;
    value->decimals = point ? (int)(c->p - point) : 0;
    return 1;
}

static const uint64_t POWERS[MOST_TIME_DIGITS + 1] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000, 100000000000,
    1000000000000, 10000000000000, 100000000000000, 1000000000000000, 10000000000000000, 100000000000000000,
    1000000000000000000, 10000000000000000000u,
};

/* As a float has it: correctly rounded, as both are whole numbers that floats hold. */
static int as_float(const Decimal *d, double *us) {
    if (d->digits > (uint64_t)1 << 53) return 0;
    *us = (double)d->digits / (double)POWERS[d->decimals];
    if (d->negative) *us = -*us;
    return 1;
}

static int64_t float_ns(double us) {
    double whole = floor(us);
    return (int64_t)whole * 1000 + (int64_t)rint((us - whole) * 1000);
}

/* As exact_ns of decoded_events.py has it, for a float of that text. */
static int float_time_ns(const Decimal *d, int64_t *ns) {
    double us;
    if (!as_float(d, &us)) return 0;
    if (d->decimals <= 3 && d->digits / POWERS[d->decimals] < FLOAT_TIME_LIMIT_US) {
        *ns = (int64_t)(d->digits * POWERS[3 - d->decimals]);
        if (d->negative) *ns = -*ns;
    } else {
        *ns = fabs(us) < 4611686018427387.904 ? float_ns(us) : NO_TIME;
    }
    return 1;
}

/* As text_time_ns of decoded_events.py has it: halves of a ns to even. */
static int64_t text_time_ns(const Decimal *d) {
    uint64_t ns;
    if (d->digits / POWERS[d->decimals] >= TIME_LIMIT_US) return NO_TIME;
    if (d->decimals <= 3) {
        ns = d->digits * POWERS[3 - d->decimals];
    } else {
        uint64_t unit = POWERS[d->decimals - 3], rest = d->digits % unit;
        ns = d->digits / unit;
        if (rest > unit / 2 || (rest == unit / 2 && (ns & 1))) ns++;
    }
    return d->negative ? -(int64_t)ns : (int64_t)ns;
}

static uint64_t mixed(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9E3779B97F4A7C15u;
    return a ^ (a >> 29);
}

static uint64_t hash_of(const uint8_t *p, int64_t length, uint64_t seed) {
    uint64_t hash = seed ^ (uint64_t)length * 0xD6E8FEB86659FD93u, last = 0;
    for (; length >= 8; p += 8, length -= 8) {
        memcpy(&last, p, 8);
        hash = mixed(hash, last);
    }
    last = 0;
    if (length) memcpy(&last, p, (size_t)length);
    hash = mixed(hash, last);
    return hash ^ (hash >> 32);
}

/* The number of bytes by first appearance; -1 when there is no room for others. `span`: where in `base` they are. */
static int32_t number_of(Table *t, const uint8_t *base, Span span, uint64_t seed) {
    uint64_t hash = hash_of(base + span.start, span.length, seed);
    int64_t mask = t->slots - 1, slot = (int64_t)(hash & (uint64_t)mask);
    int probes;
    for (probes = 0; probes < MOST_PROBES; probes++, slot = (slot + 1) & mask) {
        int32_t number = t->slot[slot];
        if (number < 0) {
            if (t->found == t->most) return -1;
            number = (int32_t)t->found++;
            t->slot[slot] = number;
            t->hash[number] = hash;
            t->spans[number] = span;
            return number;
        }
        if (t->hash[number] == hash && t->spans[number].length == span.length &&
            !memcmp(base + t->spans[number].start, base + span.start, (size_t)span.length))
            return number;
    }
    return -1;
}

static int32_t string_number(Scan *s, Span span) { return number_of(&s->strings, s->text, span, s->seed); }

/* `pairs` has room for one more than there can be: what is looked for stands behind those that are known. */
static int32_t lane_number(Scan *s, int32_t process, int32_t thread) {
    Span span = { (int32_t)s->lanes.found * PAIR_BYTES, PAIR_BYTES };
    s->pairs[2 * s->lanes.found] = process;
    s->pairs[2 * s->lanes.found + 1] = thread;
    return number_of(&s->lanes, (const uint8_t *)s->pairs, span, s->seed);
}

/* The texts of a signature behind those of the others, each but the first behind a NUL byte, absent last ones left out;
 * -1 when there is no room. */
static int64_t join_texts(Scan *s, const Span *spans, uint32_t present) {
    uint8_t *start = s->joined + s->joined_length, *p = start, *end = s->joined + s->most_joined;
    int i;
    for (i = 0; present >> i; i++) {
        int is_there = present >> i & 1u;
        if (end - p <= (is_there ? spans[i].length : 0)) return -1;
        if (i) *p++ = 0;
        if (!is_there) continue;
        memcpy(p, s->text + spans[i].start, (size_t)spans[i].length);
        p += spans[i].length;
    }
    return p - start;
}

/* -1: the event has none; -2: no room for another one. */
static int32_t signature_number(Scan *s, const Span *spans, uint32_t present) {
    int64_t known = s->signatures.found, length;
    Span span;
    int32_t number;
    if (!(present & ATTRIBUTED)) {
        if (present & SHAPED) present &= FIRST_PARTS;
        else if (!(present & (1u << COPIED))) return -1;
    }
    if ((length = join_texts(s, spans, present)) < 0) return -2;
    span.start = (int32_t)s->joined_length;
    span.length = (int32_t)length;
    if ((number = number_of(&s->signatures, s->joined, span, s->seed)) < 0) return -2;
    if (s->signatures.found > known) s->joined_length += length;
    return number;
}

/* The keys of arguments, shortest first: which number, or (NUMBERS and more) which text, each of them is. */
typedef struct { const char *key; int place; } Key;

#define NUMBER(text, place) { text, place }
#define TEXT(text, place) { text, NUMBERS + place }
static const Key KEYS[] = {
    TEXT("name", LABEL_NAME), NUMBER("Bytes", BYTES), TEXT("bytes", COPIED), TEXT("dtype", DTYPE),
    NUMBER("stream", STREAM), NUMBER("device", DEVICE), TEXT("labels", LABELS), TEXT("Dst Rank", RECEIVER),
    TEXT("Src Rank", SENDER), NUMBER("graph id", GRAPH), NUMBER("Device Id", DEVICE_ID), TEXT("Input Dims", DIMS),
    TEXT("Input type", TYPES), TEXT("Group size", GROUP_SIZE), TEXT("Input dims", OLD_DIMS),
    NUMBER("correlation", CORRELATION), NUMBER("External id", EXTERNAL_ID), NUMBER("external id", OLD_EXTERNAL_ID),
    NUMBER("Device Type", DEVICE_TYPE), TEXT("kernel_flop", KERNEL_FLOP),
    TEXT("Input Strides", STRIDES), TEXT("In msg nelems", IN_ELEMENTS), TEXT("In split size", IN_SPLIT),
    NUMBER("graph node id", GRAPH_NODE), TEXT("kernel_kwargs", KERNEL_KWARGS),
    TEXT("kernel_num_gb", KERNEL_NUM_GB), NUMBER("wait_on_stream", WAIT_ON_STREAM), NUMBER("Total Reserved", RESERVED),
    TEXT("Out msg nelems", OUT_ELEMENTS), TEXT("Out split size", OUT_SPLIT), TEXT("kernel_backend", KERNEL_BACKEND),
    NUMBER("Sequence number", SEQUENCE_NUMBER), TEXT("Concrete Inputs", SCALARS),
    NUMBER("Total Allocated", ALLOCATED), TEXT("Collective name", COLLECTIVE), TEXT("Process Group Name", GROUP_NAME),
    TEXT("Process Group Ranks", GROUP_RANKS), TEXT("Process Group Description", GROUP_DESCRIPTION),
    NUMBER("wait_on_cuda_event_record_corr_id", WAIT_ON_RECORD),
};
#define LONGEST_KEY 33
/* Where the keys of each length begin; one more ends the last. */
static const uint8_t FIRST_OF_LENGTH[LONGEST_KEY + 2] = {
    0, 0, 0, 0, 0, 1, 4, 7, 7, 10, 11, 15, 20, 20, 26, 31, 35, 35, 35, 36, 37, 37, 37, 37, 37, 37, 38, 38, 38, 38, 38, 38, 38, 38, 39
};
/* Measured traffic: its keys begin so, and decoded_events.py reads them. */
#define TRAFFIC "dram__bytes"
enum { UNKNOWN = -1, MEASURED_TRAFFIC = -2 };

static int argument_key(const uint8_t *key, int32_t length) {
    int i, end = length > LONGEST_KEY ? 0 : FIRST_OF_LENGTH[length + 1];
    for (i = length > LONGEST_KEY ? 0 : FIRST_OF_LENGTH[length]; i < end; i++)
        if (!memcmp(KEYS[i].key, key, (size_t)length)) return i;
    return length >= (int)strlen(TRAFFIC) && !memcmp(key, TRAFFIC, strlen(TRAFFIC)) ? MEASURED_TRAFFIC : UNKNOWN;
}

enum { PH, CAT, NAME, PID, TID, TS, DUR, ID, ARGS, OTHER };

static int event_key(const uint8_t *k, int32_t length) {
    switch (length) {
    case 2: return !memcmp(k, "ph", 2) ? PH : !memcmp(k, "ts", 2) ? TS : !memcmp(k, "id", 2) ? ID : OTHER;
    case 3:
        return !memcmp(k, "cat", 3) ? CAT : !memcmp(k, "pid", 3) ? PID : !memcmp(k, "tid", 3) ? TID
             : !memcmp(k, "dur", 3) ? DUR : OTHER;
    case 4: return !memcmp(k, "name", 4) ? NAME : !memcmp(k, "args", 4) ? ARGS : OTHER;
    default: return OTHER;
    }
}

/* The keys that objects of one kind had so far, and which one followed on each the last time: it is looked at first. */
#define MOST_KEYS 64
typedef struct {
    Span span[MOST_KEYS + 1];
    int number[MOST_KEYS + 1], next[MOST_KEYS + 1];
    int found; /* place 0 is before the first key */
} Keys;

static int place_of(Keys *keys, const uint8_t *text, Span key, int (*number_of)(const uint8_t *, int32_t)) {
    int i;
    for (i = 1; i <= keys->found; i++)
        if (keys->span[i].length == key.length &&
            !memcmp(text + keys->span[i].start, text + key.start, (size_t)key.length))
            return i;
    if (keys->found == MOST_KEYS) return 0;
    keys->found++;
    keys->span[i] = key;
    keys->number[i] = number_of(text + key.start, key.length);
    keys->next[i] = 0;
    return i;
}

/* What stood in one place of the event before: most often it stands there again. */
typedef struct {
    Span span;
    int32_t string;
} Last;

typedef struct {
    Last last[OTHER];
    Keys fields, arguments;
} Before;

/* A key and the colon behind it; `place`: of the key before, and then of this one. */
static int read_key(
    Scan *s, Cursor *c, Keys *keys, int (*number_of)(const uint8_t *, int32_t), int *place, int *number
) {
    Span key;
    int escaped, next = keys->next[*place];
    if (!takes(c, '"')) return 0;
    if (next && goes_on_as(c, s->text, keys->span[next], '"')) {
        c->p += keys->span[next].length + 1;
    } else {
        if (!skip_string(c, &key, s->text, &escaped) || escaped) return 0;
        next = place_of(keys, s->text, key, number_of);
        keys->next[*place] = next;
    }
    *number = next ? keys->number[next] : number_of(s->text + key.start, key.length);
    *place = next;
    return takes(c, ':');
}

typedef struct {
    Span spans[SPANS];
    uint32_t present; /* which of `spans` there are */
} Texts;

/* A stream or device: a number, or the text of a pointer. */
static int read_place(Scan *s, Cursor *c, int64_t *value) {
    Span inside;
    int escaped;
    int32_t number;
    if (!takes(c, '"')) return read_whole(c, value);
    if (!skip_string(c, &inside, s->text, &escaped) || (number = string_number(s, inside)) < 0) return 0;
    *value = TEXT_NUMBER + number;
    return 1;
}

static int read_args(Scan *s, Cursor *c, Before *before, int64_t row, Texts *texts) {
    uint64_t seen = 0;
    int key = 0;
    skip_blank(c);
    if (c->p < c->end && *c->p == 'n') return skip_word(c, "null", 4);
    if (!takes(c, '{')) return 0;
    if (takes(c, '}')) return 1;
    do {
        int number, place;
        if (!read_key(s, c, &before->arguments, argument_key, &key, &number) || number == MEASURED_TRAFFIC) return 0;
        if (number == UNKNOWN) {
            if (!skip_value(c, s->text, 0)) return 0;
            continue;
        }
        if (seen >> number & 1u) return 0;
        seen |= (uint64_t)1 << number;
        place = KEYS[number].place;
        if (place < NUMBERS) {
            int64_t *value = s->numbers + place * s->most_events + row;
            if (place >= STREAM ? !read_place(s, c, value) : !read_whole(c, value)) return 0;
        } else {
            Span *span = texts->spans + (place - NUMBERS);
            skip_blank(c);
            span->start = (int32_t)(c->p - s->text);
            if (!skip_value(c, s->text, 0)) return 0;
            span->length = (int32_t)(c->p - s->text) - span->start;
            texts->present |= 1u << (place - NUMBERS);
        }
    } while (takes(c, ','));
    return takes(c, '}');
}

/* The string of a process or thread as recorded, quotes included: 7 and "7" are two. */
static int read_token(Scan *s, Cursor *c, Last *last, int32_t *string) {
    Span span;
    int64_t value;
    int escaped;
    skip_blank(c);
    if (last->span.length && goes_on_as(c, s->text, last->span, ',')) {
        c->p += last->span.length;
        *string = last->string;
        return 1;
    }
    span.start = (int32_t)(c->p - s->text);
    if (takes(c, '"')) {
        Span inside;
        if (!skip_string(c, &inside, s->text, &escaped)) return 0;
    } else if (!read_whole(c, &value)) {
        return 0;
    }
    span.length = (int32_t)(c->p - s->text) - span.start;
    *string = string_number(s, span);
    last->span = span;
    last->string = *string;
    return *string >= 0;
}

static int read_string(Scan *s, Cursor *c, Last *last, int32_t *string) {
    Span inside;
    int escaped;
    if (!takes(c, '"')) return 0;
    if (goes_on_as(c, s->text, last->span, '"')) {
        c->p += last->span.length + 1;
        *string = last->string;
        return 1;
    }
    if (!skip_string(c, &inside, s->text, &escaped)) return 0;
    *string = string_number(s, inside);
    last->span = inside;
    last->string = *string;
    return *string >= 0;
}

/* A number of an arrow, as it is; of all else -2 and less: the number of the string. null is as if there was none. */
static int read_id(Scan *s, Cursor *c, int64_t *id) {
    Span span;
    int escaped;
    skip_blank(c);
    if (c->p < c->end && *c->p == 'n') return skip_word(c, "null", 4);
    if (takes(c, '"')) {
        if (!skip_string(c, &span, s->text, &escaped)) return 0;
    } else {
        span.start = (int32_t)(c->p - s->text);
        if (!read_whole(c, id)) return 0;
        if (*id >= 0) return 1;
        span.length = (int32_t)(c->p - s->text) - span.start;
    }
    *id = string_number(s, span);
    if (*id < 0) return 0;
    *id = -2 - *id;
    return 1;
}

static int read_time(Scan *s, Cursor *c, int64_t *start_ns) {
    Decimal time;
    if (!read_decimal(c, &time)) return NOT_PLAIN;
    if (s->text_times) {
        *start_ns = text_time_ns(&time);
        return DONE;
    }
    if (time.digits / POWERS[time.decimals] >= FLOAT_TIME_LIMIT_US) return NEEDS_TEXT_TIMES;
    return float_time_ns(&time, start_ns) ? DONE : NOT_PLAIN;
}

static int read_duration(Cursor *c, int64_t *duration_ns) {
    Decimal time;
    return read_decimal(c, &time) && float_time_ns(&time, duration_ns);
}

static int read_field(Scan *s, Cursor *c, Before *before, int field, int64_t row, int32_t *lane, Texts *texts) {
    Span inside;
    int escaped;
    switch (field) {
    case PH:
        if (!takes(c, '"') || !skip_string(c, &inside, s->text, &escaped) || inside.length > 1) return NOT_PLAIN;
        s->phase[row] = inside.length ? s->text[inside.start] : 0;
        return s->phase[row] == 'B' || s->phase[row] == 'E' || s->phase[row] >= 0x80 ? NOT_PLAIN : DONE;
    case CAT: return read_string(s, c, &before->last[CAT], &s->category[row]) ? DONE : NOT_PLAIN;
    case NAME: return read_string(s, c, &before->last[NAME], &s->name[row]) ? DONE : NOT_PLAIN;
    case PID: return read_token(s, c, &before->last[PID], &lane[0]) ? DONE : NOT_PLAIN;
    case TID: return read_token(s, c, &before->last[TID], &lane[1]) ? DONE : NOT_PLAIN;
    case TS: return read_time(s, c, &s->start_ns[row]);
    case DUR: return read_duration(c, &s->duration_ns[row]) ? DONE : NOT_PLAIN;
    case ID: return read_id(s, c, &s->id[row]) ? DONE : NOT_PLAIN;
    case ARGS: return read_args(s, c, before, row, texts) ? DONE : NOT_PLAIN;
    default: return skip_value(c, s->text, 0) ? DONE : NOT_PLAIN;
    }
}

static int add_label(Scan *s, int64_t row, const Texts *texts) {
    int i;
    if (s->labels_found == s->most_labels) return 0;
    s->label_event[s->labels_found] = (int32_t)row;
    for (i = 0; i < 2; i++) {
        Span span = texts->spans[LABEL_NAME + i];
        if (!(texts->present >> (LABEL_NAME + i) & 1u)) span.start = span.length = 0;
        s->labels[2 * s->labels_found + i] = span;
    }
    s->labels_found++;
    return 1;
}

static int read_event(Scan *s, Cursor *c, Before *before) {
    int64_t row = s->events_found;
    int32_t lane[2] = { 0, 0 };
    unsigned seen = 0;
    Texts texts;
    int i, key = 0;
    if (row == s->most_events || !takes(c, '{')) return NOT_PLAIN;
    texts.present = 0;
    s->phase[row] = 0;
    s->category[row] = s->name[row] = 0; /* the empty string */
    s->start_ns[row] = NO_TIME;
    s->duration_ns[row] = 0;
    s->id[row] = -1;
    for (i = 0; i < NUMBERS; i++) s->numbers[i * s->most_events + row] = i == BYTES ? 0 : -1;
    if (!takes(c, '}')) {
        do {
            int field, state;
            if (!read_key(s, c, &before->fields, event_key, &key, &field)) return NOT_PLAIN;
            if (field != OTHER && seen >> field & 1u) return NOT_PLAIN;
            seen |= 1u << field;
            if ((state = read_field(s, c, before, field, row, lane, &texts)) != DONE) return state;
        } while (takes(c, ','));
        if (!takes(c, '}')) return NOT_PLAIN;
    }
    if ((s->lane[row] = lane_number(s, lane[0], lane[1])) < 0) return NOT_PLAIN;
    if ((s->signature[row] = signature_number(s, texts.spans, texts.present & ((1u << TEXTS) - 1u))) == -2)
        return NOT_PLAIN;
    if (s->phase[row] == 'M' && !add_label(s, row, &texts)) return NOT_PLAIN;
    s->events_found++;
    return DONE;
}

static void empty(Table *t) {
    t->found = 0;
    memset(t->slot, 0xff, (size_t)t->slots * sizeof(*t->slot));
}

int32_t tracelens_layout(void) { return LAYOUT; }

/* The events of `text`, which begins with the first one's brace, up to the end of the text or, LIST_ENDS, to the bracket
 * that ends the list; `end`: the place behind it, and behind blanks that follow. */
int32_t tracelens_scan(Scan *s) {
    Cursor c = { s->text, s->text + s->length };
    Span nothing = { 0, 0 };
    Before before;
    int state;
    memset(&before, 0, sizeof(before));
    s->events_found = s->joined_length = s->labels_found = 0;
    empty(&s->strings);
    empty(&s->lanes);
    empty(&s->signatures);
    if (string_number(s, nothing)) return NOT_PLAIN;
    do {
        if ((state = read_event(s, &c, &before)) != DONE) return state;
    } while (takes(&c, ','));
    state = takes(&c, ']') ? LIST_ENDS : DONE;
    skip_blank(&c);
    s->end = c.p - s->text;
    return state == LIST_ENDS || c.p == c.end ? state : NOT_PLAIN;
}
