/* Inside the tokenizer: what its files share. Nothing outside tokenizer*.c, detok.c and their tests
 * includes this.
 *
 * Text takes four steps: added tokens are cut out (tokenizer_added.c), the rest is normalised
 * (tokenizer_nfc.c), cut into words by a list of stages (tokenizer_regex.c), and each word is
 * merged (tokenizer_bpe.c). Words stay raw bytes: the byte level's printable alphabet is a
 * bijection, so it is undone once, in the vocabulary, instead of applied to each text. */
#ifndef BATON_ENGINE_EMBEDDED_TOKENIZER_PRIV_H
#define BATON_ENGINE_EMBEDDED_TOKENIZER_PRIV_H

#include "base/buf.h"
#include "base/err.h"
#include "engine/embedded/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOKENIZER_JSON_NBYTES_MAX = 64 << 20,    /* tokenizer.json */
    TOKENIZER_ID_MAX = (1 << 21) - 1,        /* largest id; bounds the table of tokens */
    TOKENIZER_MERGES_MAX = 1 << 21,          /* entries of /model/merges */
    TOKENIZER_ADDED_MAX = 1 << 16,           /* entries of /added_tokens */
    TOKENIZER_ADDED_NBYTES_MAX = 512,        /* one added token's content */
    TOKENIZER_STAGES_MAX = 16,               /* stages of /pre_tokenizer */
    TOKENIZER_NESTING_MAX = 4,               /* Sequence inside Sequence */
    TOKENIZER_TEMPLATE_IDS_MAX = 64,         /* ids that the post processor adds on each side */
    TOKENIZER_PATTERN_NBYTES_MAX = 16 << 10, /* one pattern, as written */
    TOKENIZER_TEXT_NBYTES_MAX = 16 << 20,    /* one text to encode; takes up to 32 times as much */
};

/* No token. */
#define TOKENIZER_ID_NONE UINT32_MAX

/* ---- tokenizer_unicode.c: characters ---- */

/* utf8_scan - look at the bytes at `s` (`len` > 0 of them).
 * Returns: > 0  a whole character of so many bytes, its code point in *cp
 *          0    the start of a character, cut off by the end of `s`
 *          < 0  not UTF-8; minus the length of the maximal part that one U+FFFD replaces */
int utf8_scan(const unsigned char *s, size_t len, uint32_t *cp);
size_t utf8_put(unsigned char *out, uint32_t cp); /* writes 1 to 4 bytes; the number written */
/* The offset of the first byte that is not part of valid UTF-8; `len` if there is none. */
size_t utf8_valid_prefix(const char *text, size_t len);

bool unicode_is_space(uint32_t cp); /* White_Space */
bool unicode_is_word(uint32_t cp);  /* Alphabetic, M, Nd, Pc, Join_Control */

/* Characters that the pattern library's Unicode tables may be too old to know. */
struct unicode_range {
    uint32_t first, last;
    char category[3]; /* general category: "Lo" */
};
const struct unicode_range *unicode_newer(size_t *n);

/* ---- tokenizer_nfc.c ---- */

/* nfc_append - append the NFC form of `text` (valid UTF-8) to `out`. Linear time.
 * Errors: ERR_NO_MEMORY. */
int nfc_append(struct buf *out, const char *text, size_t len, struct err *e);

/* ---- tokenizer_regex.c: patterns ---- */

struct regex;   /* one compiled pattern; immutable, shared by threads */
struct matcher; /* what one running match needs; one thread's */

/* regex_new - compile the pattern of a tokenizer.json.
 * @literal  the pattern is a plain string, not an expression
 * @field    JSON pointer for errors
 * Errors: ERR_BAD_REQUEST  a construct that the library would read otherwise than the tokenizer's
 *                          author meant, or a malformed or too long pattern
 *         ERR_NO_MEMORY */
int regex_new(struct regex **out, const char *pattern, size_t len, bool literal, const char *field,
              struct err *e);
void regex_free(struct regex *re); /* accepts NULL */
extern const char REGEX_GPT2[];    /* what ByteLevel uses by itself */

/* For a text of `len` bytes, which also says how long matching may take. NULL: no memory. */
struct matcher *matcher_new(size_t len);
void matcher_free(struct matcher *m);

/* A walk over the matches in one text, left to right. */
struct regex_walk {
    const char *text; /* borrowed; valid UTF-8 */
    size_t len;
    size_t from;       /* where the next search starts */
    size_t last_end;   /* end of the last match; SIZE_MAX before the first */
    size_t start, end; /* the match found */
};
/* regex_next - find the next match.
 * Returns: 1 found, 0 no more, -1 error. Errors: ERR_BAD_REQUEST (a limit), ERR_NO_MEMORY. */
int regex_next(const struct regex *re, struct matcher *m, struct regex_walk *w, struct err *e);

/* ---- tokenizer_added.c: tokens that are found in the text itself ---- */

struct added_token {
    const char *content; /* borrowed from the tokenizer's arena */
    size_t len;
    uint32_t id;
    bool single_word, lstrip, rstrip;
};

/* Patterns of one kind (matched before, or after, normalisation). */
struct added_set {
    struct added_token *tokens; /* owned; sorted by content once added_set_sort ran */
    size_t n;
    uint32_t first[257]; /* tokens that begin with byte b: [first[b], first[b + 1]) */
};
/* added_set_sort - make the set searchable. Contents are distinct and not empty. */
void added_set_sort(struct added_set *set);

/* A walk over one text: pieces of plain text and added tokens, in order. */
struct added_walk {
    const char *text; /* borrowed */
    size_t len;
    size_t search;                /* where the search goes on */
    size_t done;                  /* everything before was handed out */
    size_t space_from, space_end; /* a known run of white space, so that none is read twice */
    bool pending;                 /* a token waits behind the plain piece handed out last */
    uint32_t pending_id;
    size_t pending_end;
};
struct added_piece {
    uint32_t id; /* TOKENIZER_ID_NONE: plain text */
    size_t start, end;
};
/* added_next - the next piece; false at the end. */
bool added_next(const struct added_set *set, struct added_walk *w, struct added_piece *piece);

/* ---- tokenizer_bpe.c: merging ---- */

struct merge {
    uint32_t left, right, result;
};

struct bpe {
    struct merge *merges; /* owned; index = rank */
    size_t n_merges;
    uint32_t *pair_slots; /* owned; hash of (left, right) -> rank + 1; 0 empty */
    size_t n_pair_slots;  /* power of two */
    uint32_t *word_slots; /* owned; hash of a word's bytes -> id + 1; NULL unless ignore_merges */
    size_t n_word_slots;
    uint32_t byte_ids[256]; /* TOKENIZER_ID_NONE: not in the vocabulary */
    uint32_t unk_id;        /* TOKENIZER_ID_NONE: characters without a token are dropped */
    bool fuse_unk;
    bool ignore_merges; /* a word that is an entry of the vocabulary is not merged */
};
/* bpe_index - build the tables over merges (and over `t`'s tokens when ignore_merges). The last of
 * equal pairs wins. Errors: ERR_NO_MEMORY. */
int bpe_index(struct bpe *b, const struct tokenizer *t, struct err *e);
void bpe_fini(struct bpe *b);

struct id_list {
    uint32_t *ids; /* owned */
    size_t n, cap;
};
int id_list_push(struct id_list *l, uint32_t id, struct err *e); /* ERR_NO_MEMORY */

struct bpe_scratch {
    struct bpe_symbol *symbols; /* owned */
    uint64_t *heap;             /* owned */
    size_t cap;                 /* bytes of the longest word that they have room for */
};
void bpe_scratch_fini(struct bpe_scratch *s);

/* bpe_word - append the ids of one word. O(n log n). Errors: ERR_NO_MEMORY. */
int bpe_word(const struct bpe *b, const struct tokenizer *t, const char *word, size_t len,
             struct bpe_scratch *scratch, struct id_list *out, struct err *e);

/* ---- the tokenizer itself ---- */

struct token {
    const char *text;           /* the spelling, NUL-terminated; borrowed from arena; NULL: no id */
    const unsigned char *bytes; /* what it decodes to; borrowed from arena */
    uint32_t text_len, n_bytes;
    bool in_model; /* an entry of /model/vocab, not only an added token */
    bool mapped;   /* the spelling is all of the byte alphabet */
    bool special;
    bool whole; /* bytes are valid UTF-8 by themselves */
};

/* One cut: every match and every gap between matches becomes a word of the next stage. */
struct stage {
    bool add_prefix_space; /* before matching, unless the word begins with a space */
    struct regex *re;      /* owned; NULL: the word stays whole */
};

/* How ids become text. The byte-fallback family will be a second member. */
enum decoder_kind { DECODER_BYTE_LEVEL };

struct tokenizer {
    char *arena;          /* owned; every text and byte string */
    struct token *tokens; /* owned */
    uint32_t n_tokens;    /* largest id + 1 */

    bool nfc;
    struct added_set added_raw;        /* normalized: false */
    struct added_set added_normalized; /* normalized: true; contents are in normal form */
    struct stage stages[TOKENIZER_STAGES_MAX];
    size_t n_stages;
    struct bpe bpe;
    uint32_t prefix[TOKENIZER_TEMPLATE_IDS_MAX], suffix[TOKENIZER_TEMPLATE_IDS_MAX];
    size_t n_prefix, n_suffix;
    enum decoder_kind decoder;
};

/* ---- tokenizer_parts.c: one member of the root each, into `t` (zeroed before). ----
 * Errors: ERR_BAD_REQUEST naming the member that is malformed or not supported; ERR_NO_MEMORY. */
int tokenizer_parse_normalizer(struct tokenizer *t, const json_t *v, struct err *e);
int tokenizer_parse_pre(struct tokenizer *t, const json_t *v, struct err *e);
/* Needs the tokens: the template's ids are looked up. */
int tokenizer_parse_post(struct tokenizer *t, const json_t *v, struct err *e);
int tokenizer_parse_decoder(struct tokenizer *t, const json_t *v, struct err *e);

/* byte_level_unmap - the bytes that a token's spelling stands for; `bytes` has room for `len`.
 * Returns: false if some character is none of the alphabet's 256; bytes are undefined then. */
bool byte_level_unmap(const char *text, size_t len, unsigned char *bytes, size_t *n_bytes);

/* detok_bytes - decode a token's bytes onto `out`, as detok_push does. */
void detok_bytes(struct detok *d, const unsigned char *bytes, size_t n, struct buf *out);

#endif
