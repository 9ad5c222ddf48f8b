/* Scans the events of a Kineto file into rows, one pass over the bytes, without an object for each event.

   It takes a part of the list of events that begins and ends between two of them. It either takes in all of it, exactly
   as the reader in Python does (reader.py, the reference), or refuses it: then the reader in Python reads that part. So it
   may be stricter than that reader and must never be laxer. It refuses whatever is rare: numbers with exponents, keys with
   escapes, times with more than three decimals.

   No text is decoded. A name, and a lane (process and thread), is told apart by its bytes, and numbered in the order in
   which it is first seen. Python decodes each of them once.

   Nothing here depends on Python, so that one library serves all its versions. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef const uint8_t *Bytes;

#define FAR_NS ((int64_t)1 << 62)
#define ABSENT (-1)
#define DEEPEST 100       /* brackets within the value of a key; real files nest a tenth of that */
#define SHORT_NUMBER 24   /* characters; longer ones are left to Python */
#define LONGEST_CATEGORY 32

/* Texts, each once ---------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    int64_t number; /* -1: nothing is here */
} Slot;

typedef struct {
    Slot *slots;
    size_t mask;      /* their number, a power of two, less 1 */
    uint8_t *bytes;   /* of all texts, one behind the other */
    size_t room;      /* for bytes */
    int64_t *ends;    /* of each text in `bytes` */
    int64_t count, count_room;
    int64_t kept;     /* how many there were before the part that is being scanned */
    uint64_t seed;
} Texts;

static uint64_t mixed(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xE7037ED1A0B428DBu);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The seed is random, so that nobody can write a file whose names all collide. */
static uint64_t hash_of(Bytes text, size_t length, uint64_t seed) {
    uint64_t hash = mixed(seed, length), word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = mixed(hash ^ word, seed);
    }
    if (length) {
        word = 0;
        memcpy(&word, text, length);
        hash = mixed(hash ^ word, seed);
    }
    return hash;
}

static int texts_open(Texts *texts, uint64_t seed) {
    memset(texts, 0, sizeof *texts);
    texts->seed = seed;
    texts->mask = 1023;
    texts->slots = malloc((texts->mask + 1) * sizeof(Slot));
    if (texts->slots) memset(texts->slots, 0xFF, (texts->mask + 1) * sizeof(Slot));
    return texts->slots != NULL;
}

static void texts_close(Texts *texts) {
    free(texts->slots);
    free(texts->bytes);
    free(texts->ends);
}

static size_t begin_of(const Texts *texts, int64_t number) { return number ? (size_t)texts->ends[number - 1] : 0; }

static Slot *slot_of(const Texts *texts, Bytes text, size_t length, uint64_t hash) {
    for (size_t at = hash & texts->mask;; at = (at + 1) & texts->mask) {
        Slot *slot = &texts->slots[at];
        if (slot->number < 0) return slot;
        if (slot->hash != hash) continue;
        size_t begin = begin_of(texts, slot->number);
        size_t there = (size_t)texts->ends[slot->number] - begin;
        if (there == length && !memcmp(texts->bytes + begin, text, length)) return slot;
    }
}

static int more_slots(Texts *texts) {
    size_t mask = texts->mask * 2 + 1;
    Slot *slots = malloc((mask + 1) * sizeof(Slot)), *old = texts->slots;
    if (!slots) return 0;
    memset(slots, 0xFF, (mask + 1) * sizeof(Slot));
    /* In the order of their numbers, so that the last ones can be taken out again. */
    Slot *by_number = malloc((size_t)(texts->count ? texts->count : 1) * sizeof(Slot));
    if (!by_number) {
        free(slots);
        return 0;
    }
    for (size_t at = 0; at <= texts->mask; at++)
        if (old[at].number >= 0) by_number[old[at].number] = old[at];
    for (int64_t number = 0; number < texts->count; number++) {
        size_t at = by_number[number].hash & mask;
        while (slots[at].number >= 0) at = (at + 1) & mask;
        slots[at] = by_number[number];
    }
    free(by_number);
    free(old);
    texts->slots = slots;
    texts->mask = mask;
    return 1;
}

/* Room for one more text. */
static int has_room(Texts *texts, size_t length) {
    size_t used = begin_of(texts, texts->count);
    if (used + length > texts->room) {
        size_t room = 2 * (used + length) + 4096;
        uint8_t *bytes = realloc(texts->bytes, room);
        if (!bytes) return 0;
        texts->bytes = bytes;
        texts->room = room;
    }
    if (texts->count == texts->count_room) {
        int64_t room = 2 * texts->count_room + 256;
        int64_t *ends = realloc(texts->ends, (size_t)room * sizeof *ends);
        if (!ends) return 0;
        texts->ends = ends;
        texts->count_room = room;
    }
    return (size_t)texts->count * 2 < texts->mask || more_slots(texts);
}

/* The number of a text; -1 where memory runs out. */
static int64_t number_of(Texts *texts, Bytes text, size_t length) {
    uint64_t hash = hash_of(text, length, texts->seed);
    Slot *slot = slot_of(texts, text, length, hash);
    if (slot->number >= 0) return slot->number;
    if (!has_room(texts, length)) return -1;
    size_t used = begin_of(texts, texts->count);
    if (length) memcpy(texts->bytes + used, text, length);
    texts->ends[texts->count] = (int64_t)(used + length);
    slot = slot_of(texts, text, length, hash);
    slot->hash = hash;
    slot->number = texts->count;
    return texts->count++;
}

/* Forget the texts of a part that was refused: the last one first, so that no other text loses its place. */
static void texts_undo(Texts *texts) {
    while (texts->count > texts->kept) {
        int64_t number = texts->count - 1;
        size_t begin = begin_of(texts, number), length = (size_t)texts->ends[number] - begin;
        Bytes text = texts->bytes + begin;
        slot_of(texts, text, length, hash_of(text, length, texts->seed))->number = -1;
        texts->count--;
    }
}

/* JSON ---------------------------------------------------------------------------------------------------------------- */

typedef struct {
    Bytes at, end;
    int is_odd; /* a number or a key that Python has to judge was met */
} Cursor;

typedef struct {
    Bytes begin;
    size_t length; /* 0: absent */
} Span;

#define ONES 0x0101010101010101u
#define HIGHS 0x8080808080808080u

/* The high bit of each byte that ends a run of plain characters: quote, backslash, control characters, and what is not
   ASCII. Of the lowest such byte it is exact. */
static uint64_t not_plain(uint64_t word) {
    uint64_t quote = word ^ ONES * '"', back = word ^ ONES * '\\';
    uint64_t quotes = (quote - ONES) & ~quote, backs = (back - ONES) & ~back;
    uint64_t controls = (word - ONES * 0x20) & ~word;
    return (quotes | backs | controls | word) & HIGHS;
}

static Bytes behind_plain(Bytes at, Bytes end) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (uint64_t word; end - at >= 8; at += 8) {
        memcpy(&word, at, 8);
        uint64_t found = not_plain(word);
        if (found) return at + (__builtin_ctzll(found) >> 3);
    }
#endif
    while (at < end && *at >= 0x20 && *at < 0x80 && *at != '"' && *at != '\\') at++;
    return at;
}

static int is_hex(uint8_t sign) {
    return (sign >= '0' && sign <= '9') || ((sign | 0x20) >= 'a' && (sign | 0x20) <= 'f');
}

/* Bytes of the escape that begins here; 0 where it is none, or half of a surrogate pair. */
static size_t escape_at(Bytes at, Bytes end) {
    if (end - at < 2) return 0;
    if (at[1] != 'u') return strchr("\"\\/bfnrt", at[1]) && at[1] ? 2 : 0;
    if (end - at < 6) return 0;
    for (int k = 2; k < 6; k++)
        if (!is_hex(at[k])) return 0;
    int is_surrogate = (at[2] | 0x20) == 'd' && !(at[3] >= '0' && at[3] <= '7');
    return is_surrogate ? 0 : 6;
}

/* Bytes of the character beyond ASCII that begins here; 0 where it is no UTF-8. */
static size_t character_at(Bytes at, Bytes end) {
    size_t length = *at >= 0xF0 ? 4 : *at >= 0xE0 ? 3 : 2;
    if (*at < 0xC2 || *at > 0xF4 || (size_t)(end - at) < length) return 0;
    for (size_t k = 1; k < length; k++)
        if ((at[k] & 0xC0) != 0x80) return 0;
    if ((*at == 0xE0 && at[1] < 0xA0) || (*at == 0xED && at[1] > 0x9F)) return 0; /* too long; a surrogate */
    if ((*at == 0xF0 && at[1] < 0x90) || (*at == 0xF4 && at[1] > 0x8F)) return 0; /* too long; too large */
    return length;
}

/* A string; `inside` is what stands between its quotes. `is_plain` gets 0 where that is more than plain ASCII. */
static int string(Cursor *text, Span *inside, int *is_plain) {
    Bytes begin = ++text->at, at = begin;
    for (;;) {
        at = behind_plain(at, text->end);
        if (at >= text->end || *at < 0x20) return 0;
        if (*at == '"') break;
        size_t length = *at == '\\' ? escape_at(at, text->end) : character_at(at, text->end);
        if (!length) return 0;
        *is_plain = 0;
        at += length;
    }
    inside->begin = begin;
    inside->length = (size_t)(at - begin);
    text->at = at + 1;
    return 1;
}

static void blanks(Cursor *text) {
    Bytes at = text->at, end = text->end;
    for (uint64_t eight; end - at >= 8 && *at == ' '; at += 8) { /* files are indented */
        memcpy(&eight, at, 8);
        if (eight != ONES * ' ') break;
    }
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
    text->at = at;
}

static int is_next(Cursor *text, uint8_t sign) { return text->at < text->end && *text->at == sign; }

static int take(Cursor *text, uint8_t sign) {
    if (!is_next(text, sign)) return 0;
    text->at++;
    return 1;
}

static int digits(Cursor *text) {
    Bytes begin = text->at, at = begin, end = text->end;
    while (at < end && *at >= '0' && *at <= '9') at++;
    text->at = at;
    return at > begin;
}

static int number(Cursor *text) {
    Bytes begin = text->at;
    take(text, '-');
    if (!take(text, '0') && !digits(text)) return 0;
    if (take(text, '.') && !digits(text)) return 0;
    if (is_next(text, 'e') || is_next(text, 'E')) {
        text->at++;
        if (!take(text, '+')) take(text, '-');
        if (!digits(text)) return 0;
        text->is_odd = 1;
    }
    if (text->at - begin > SHORT_NUMBER) text->is_odd = 1;
    return 1;
}

static int word(Cursor *text, const char *wanted, size_t length) {
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, wanted, length)) return 0;
    text->at += length;
    return 1;
}

static int value(Cursor *text, int depth);

/* A key and its colon, up to the value. */
static int key(Cursor *text, Span *name) {
    int is_plain = 1;
    if (!is_next(text, '"') || !string(text, name, &is_plain)) return 0;
    if (!is_plain) text->is_odd = 1;
    blanks(text);
    if (!take(text, ':')) return 0;
    blanks(text);
    return 1;
}

/* Behind a value in brackets that `close` ends: 1 where another one follows, 0 where the brackets end, -1 where neither. */
static int is_more(Cursor *text, uint8_t close) {
    blanks(text);
    if (take(text, close)) return 0;
    if (!take(text, ',')) return -1;
    blanks(text);
    return 1;
}

static int object(Cursor *text, int depth) {
    Span name;
    text->at++;
    blanks(text);
    if (take(text, '}')) return 1;
    for (;;) {
        if (!key(text, &name) || !value(text, depth)) return 0;
        int more = is_more(text, '}');
        if (more <= 0) return more == 0;
    }
}

static int list(Cursor *text, int depth) {
    text->at++;
    blanks(text);
    if (take(text, ']')) return 1;
    for (;;) {
        if (!value(text, depth)) return 0;
        int more = is_more(text, ']');
        if (more <= 0) return more == 0;
    }
}

/* Any value. Never beyond `end`. */
static int value(Cursor *text, int depth) {
    Span inside;
    int is_plain = 1;
    if (text->at >= text->end || depth > DEEPEST) return 0;
    switch (*text->at) {
    case '"': return string(text, &inside, &is_plain);
    case '{': return object(text, depth + 1);
    case '[': return list(text, depth + 1);
    case 't': return word(text, "true", 4);
    case 'f': return word(text, "false", 5);
    case 'n': return word(text, "null", 4);
    default: return number(text);
    }
}

static int spanned(Cursor *text, Span *found) {
    found->begin = text->at;
    if (!value(text, 0)) return 0;
    found->length = (size_t)(text->at - found->begin);
    return 1;
}

static int is_text(Span found, const char *wanted, size_t length) {
    return found.length == length && !memcmp(found.begin, wanted, length);
}
#define IS(found, wanted) is_text(found, wanted, sizeof(wanted) - 1)

/* A whole number of at most 18 digits. */
static int whole(Span found, int64_t *number) {
    int is_negative = found.length > 1 && *found.begin == '-';
    Bytes at = found.begin + is_negative, end = found.begin + found.length;
    if (at == end || end - at > 18) return 0;
    int64_t sum = 0;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9') return 0;
        sum = sum * 10 + (*at - '0');
    }
    *number = is_negative ? -sum : sum;
    return 1;
}

/* Microseconds with at most three decimals as whole nanoseconds. What is rarer is left to Python. */
static int nanoseconds(Span found, int64_t *ns) {
    Bytes at = found.begin, end = found.begin + found.length;
    uint64_t sum = 0; /* 19 digits fit */
    int decimals = -1, count = 0;
    for (; at < end; at++) {
        if (*at == '.' && decimals < 0) {
            decimals = 0;
            continue;
        }
        if (*at < '0' || *at > '9' || ++count > 19) return 0;
        if (decimals >= 0 && ++decimals > 3) return 0;
        sum = sum * 10 + (uint64_t)(*at - '0');
    }
    if (!count || decimals == 0) return 0;
    uint64_t scale = decimals <= 0 ? 1000 : decimals == 1 ? 100 : decimals == 2 ? 10 : 1;
    if (sum >= (uint64_t)FAR_NS / scale) return 0;
    *ns = (int64_t)(sum * scale);
    return 1;
}

/* Events -------------------------------------------------------------------------------------------------------------- */

enum { ODD_ARGS = 1, COLLECTIVE = 2 };

typedef struct {
    int64_t begin_ns, length_ns, correlation, nbytes;
    int32_t name, lane;
    int32_t args_begin, args_end; /* in the part; both 0 where there are none */
    uint8_t category, flags, unused[6];
} Row;

typedef struct {
    Texts names, lanes, categories;
    int8_t *kinds; /* by category's number */
    uint8_t last_category[LONGEST_CATEGORY];
    size_t last_category_length;
    int last_kind;
    uint8_t *lane; /* the last one: process, 0, thread */
    size_t lane_length, lane_room;
    int64_t lane_number;
} Scanner;

typedef struct {
    Span phase, category, name, pid, tid, ts, dur, args;
    int64_t correlation, nbytes;
    uint8_t flags;
} Event;

/* Of a row of arguments: what device work is joined by, and what a copy moves. */
static int arguments(Cursor *text, Event *event) {
    Span name, found;
    int outer = text->is_odd, more;
    text->is_odd = 0;
    event->correlation = event->nbytes = ABSENT;
    event->flags = 0;
    event->args.begin = text->at;
    if (!is_next(text, '{')) {
        if (!spanned(text, &event->args)) return 0;
        if (!IS(event->args, "null")) event->flags = ODD_ARGS;
        text->is_odd = outer;
        return 1;
    }
    text->at++;
    blanks(text);
    more = take(text, '}') ? 0 : 1;
    while (more > 0) {
        if (!key(text, &name) || !spanned(text, &found)) return 0;
        if (IS(name, "correlation")) {
            if (!whole(found, &event->correlation)) text->is_odd = 1;
        } else if (IS(name, "bytes")) {
            if (!whole(found, &event->nbytes) || event->nbytes < 0) text->is_odd = 1;
        } else if (IS(name, "Collective name")) {
            event->flags = COLLECTIVE;
        }
        more = is_more(text, '}');
    }
    if (more < 0) return 0;
    if (event->correlation <= 0) event->correlation = ABSENT;
    if (text->is_odd) event->flags |= ODD_ARGS;
    text->is_odd = outer;
    event->args.length = (size_t)(text->at - event->args.begin);
    return 1;
}

/* A string, a short number or null, which names and ids are. */
static int scalar(Cursor *text, Span *found) {
    if (is_next(text, '{') || is_next(text, '[') || is_next(text, 't') || is_next(text, 'f')) return 0;
    return spanned(text, found);
}

static int plain_string(Cursor *text, Span *found) {
    int is_plain = 1;
    return is_next(text, '"') && string(text, found, &is_plain) && is_plain;
}

static int field(Cursor *text, Span name, Event *event) {
    Span other;
    switch (name.length) {
    case 2:
        if (IS(name, "ph")) return plain_string(text, &event->phase);
        if (IS(name, "ts")) return spanned(text, &event->ts);
        break;
    case 3:
        if (IS(name, "cat")) {
            event->category.length = 0;
            return is_next(text, 'n') ? word(text, "null", 4) : plain_string(text, &event->category);
        }
        if (IS(name, "pid")) return scalar(text, &event->pid);
        if (IS(name, "tid")) return scalar(text, &event->tid);
        if (IS(name, "dur")) return spanned(text, &event->dur);
        break;
    case 4:
        if (IS(name, "name")) return scalar(text, &event->name);
        if (IS(name, "args")) return arguments(text, event);
        break;
    }
    int is_odd = text->is_odd;
    if (!spanned(text, &other)) return 0;
    text->is_odd = is_odd; /* nobody reads it */
    return 1;
}

/* The fields of one event. Whatever is odd in them, apart from its arguments, is left to Python. */
static int fields(Cursor *text, Event *event) {
    static const Span zero = {(Bytes) "0", 1};
    Span name;
    memset(event, 0, sizeof *event);
    event->pid = event->tid = zero;
    event->correlation = event->nbytes = ABSENT;
    if (!take(text, '{')) return 0;
    text->is_odd = 0;
    blanks(text);
    int more = take(text, '}') ? 0 : 1;
    while (more > 0) {
        if (!key(text, &name) || !field(text, name, event)) return 0;
        more = is_more(text, '}');
    }
    return more == 0 && !text->is_odd;
}

static int kind_of(Scanner *scanner, Span category) {
    uint8_t small[LONGEST_CATEGORY];
    if (!category.length || category.length > LONGEST_CATEGORY) return -1;
    if (category.length == scanner->last_category_length &&
        !memcmp(category.begin, scanner->last_category, category.length))
        return scanner->last_kind;
    for (size_t k = 0; k < category.length; k++) {
        uint8_t sign = category.begin[k];
        small[k] = sign >= 'A' && sign <= 'Z' ? sign + 32 : sign;
    }
    uint64_t hash = hash_of(small, category.length, scanner->categories.seed);
    int64_t number = slot_of(&scanner->categories, small, category.length, hash)->number;
    memcpy(scanner->last_category, category.begin, category.length);
    scanner->last_category_length = category.length;
    scanner->last_kind = number < 0 ? -1 : scanner->kinds[number];
    return scanner->last_kind;
}

static int64_t lane_of(Scanner *scanner, Span pid, Span tid) {
    size_t length = pid.length + 1 + tid.length;
    if (length == scanner->lane_length && !memcmp(scanner->lane, pid.begin, pid.length) &&
        !scanner->lane[pid.length] && !memcmp(scanner->lane + pid.length + 1, tid.begin, tid.length))
        return scanner->lane_number;
    if (length > scanner->lane_room) {
        uint8_t *lane = realloc(scanner->lane, 2 * length);
        if (!lane) return -1;
        scanner->lane = lane;
        scanner->lane_room = 2 * length;
    }
    memcpy(scanner->lane, pid.begin, pid.length);
    scanner->lane[pid.length] = 0;
    memcpy(scanner->lane + pid.length + 1, tid.begin, tid.length);
    scanner->lane_length = length;
    scanner->lane_number = number_of(&scanner->lanes, scanner->lane, length);
    return scanner->lane_number;
}

static int fill(Scanner *scanner, Bytes part, const Event *event, int kind, Row *row) {
    static const Span empty = {(Bytes) "\"\"", 2};
    Span named = event->name.length ? event->name : empty;
    int64_t name, lane;
    if (!nanoseconds(event->ts, &row->begin_ns) || !nanoseconds(event->dur, &row->length_ns)) return 0;
    if ((name = number_of(&scanner->names, named.begin, named.length)) < 0 || name > INT32_MAX) return 0;
    if ((lane = lane_of(scanner, event->pid, event->tid)) < 0 || lane > INT32_MAX) return 0;
    row->name = (int32_t)name;
    row->lane = (int32_t)lane;
    row->category = (uint8_t)kind;
    row->flags = event->flags;
    row->correlation = event->correlation;
    row->nbytes = event->nbytes;
    row->args_begin = event->args.length ? (int32_t)(event->args.begin - part) : 0;
    row->args_end = row->args_begin + (int32_t)event->args.length;
    return 1;
}

/* For Python ---------------------------------------------------------------------------------------------------------- */

#define PUBLIC __attribute__((visibility("default")))

PUBLIC void ddptrace_scanner_close(Scanner *scanner) {
    if (!scanner) return;
    texts_close(&scanner->names);
    texts_close(&scanner->lanes);
    texts_close(&scanner->categories);
    free(scanner->kinds);
    free(scanner->lane);
    free(scanner);
}

/* NULL where memory runs out. `kinds`: of each category, whose lower-case names stand in `categories`, each behind its
   length. */
PUBLIC Scanner *ddptrace_scanner_open(uint64_t seed, const uint8_t *categories, const int8_t *kinds, int64_t count) {
    Scanner *scanner = calloc(1, sizeof *scanner);
    if (!scanner) return NULL;
    int is_open = texts_open(&scanner->names, seed);
    is_open &= texts_open(&scanner->lanes, seed);
    is_open &= texts_open(&scanner->categories, seed);
    scanner->kinds = malloc((size_t)count + 1);
    is_open &= scanner->kinds != NULL;
    for (int64_t k = 0; is_open && k < count; k++) {
        is_open &= number_of(&scanner->categories, categories + 1, *categories) == k;
        scanner->kinds[k] = kinds[k];
        categories += 1 + *categories;
    }
    if (is_open) return scanner;
    ddptrace_scanner_close(scanner);
    return NULL;
}

/* Forget what the last part has added. */
PUBLIC void ddptrace_scanner_undo(Scanner *scanner) {
    texts_undo(&scanner->names);
    texts_undo(&scanner->lanes);
    scanner->lane_length = 0;
}

/* Scan a part of the list, `nbytes` long. Gives how many events it holds, kept or not; -1 where it is left to Python.
   `rows` has room for `most`, and gets one for each kept event; `threads`, of the same room, gets begin and end of each event
   that may name a thread; `found` how many rows and threads there are. */
PUBLIC int64_t ddptrace_scan(
    Scanner *scanner, const uint8_t *part, int64_t nbytes, Row *rows, int32_t *threads, int64_t most, int64_t *found
) {
    Cursor text = {part, part + nbytes, 0};
    int64_t seen = 0, kept = 0, named = 0;
    Event event;
    found[0] = found[1] = 0;
    scanner->names.kept = scanner->names.count;
    scanner->lanes.kept = scanner->lanes.count;
    if (nbytes > INT32_MAX) return -1;
    blanks(&text);
    while (text.at < text.end) {
        Bytes begin = text.at;
        if ((seen && !take(&text, ',')) || kept >= most || named >= most) goto refused;
        if (seen) {
            blanks(&text);
            begin = text.at;
        }
        if (!fields(&text, &event)) goto refused;
        seen++;
        if (IS(event.phase, "X")) {
            int kind = kind_of(scanner, event.category);
            if (kind >= 0 && !fill(scanner, part, &event, kind, &rows[kept++])) goto refused;
        } else if (IS(event.phase, "M")) {
            threads[2 * named] = (int32_t)(begin - part);
            threads[2 * named++ + 1] = (int32_t)(text.at - part);
        }
        blanks(&text);
    }
    found[0] = kept;
    found[1] = named;
    return seen;
refused:
    ddptrace_scanner_undo(scanner);
    return -1;
}

/* The texts of one table: 0 names, as JSON; 1 lanes, each the JSON of its process, a zero byte, and that of its thread.
   `ends`: where each ends in `bytes`. Gives how many there are; the pointers hold until the next part is scanned. */
PUBLIC int64_t ddptrace_scanner_texts(Scanner *scanner, int which, const uint8_t **bytes, const int64_t **ends) {
    Texts *texts = which ? &scanner->lanes : &scanner->names;
    *bytes = texts->bytes;
    *ends = texts->ends;
    return texts->count;
}

/* A hash of this file, so that a library of another state of it is not used. */
PUBLIC const char *ddptrace_scanner_source(void) { return DDPTRACE_SOURCE; }
