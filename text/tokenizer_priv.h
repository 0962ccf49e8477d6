/* Inside the tokenizer: what its files share. Nothing outside tokenizer*.c, detok.c and their tests
 * includes this.
 *
 * Text takes four steps: added tokens are cut out (tokenizer_added.c), the rest is normalised
 * (tokenizer_normal.c, tokenizer_nfc.c), cut into words by a list of stages (tokenizer_regex.c),
 * and each word is merged (tokenizer_bpe.c). Words stay raw bytes: the byte level's printable
 * alphabet is a bijection, so it is undone once, in the vocabulary, instead of applied to each
 * text.
 *
 * Two families: byte-level (GPT-2, Qwen, Llama 3), whose symbols are bytes; and spelled (Llama 2,
 * Mistral), whose symbols are characters, or, with byte fallback, tokens like "<0x0A>" for the
 * bytes of a character that has none. */
#ifndef BATON_TEXT_TOKENIZER_PRIV_H
#define BATON_TEXT_TOKENIZER_PRIV_H

#include "base/buf.h"
#include "base/err.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

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
    TOKENIZER_NORMAL_STEPS_MAX = 8,          /* normalizers */
    TOKENIZER_AFFIX_NBYTES_MAX = 16,         /* a string that is prepended or replaced */
    TOKENIZER_REPLACE_GROWTH_MAX = 4,        /* bytes that one byte of a pattern may become */
    TOKENIZER_NORMAL_NBYTES_MAX = 4 * TOKENIZER_TEXT_NBYTES_MAX, /* a text once normalised */
};

/* No token. */
#define TOKENIZER_ID_NONE UINT32_MAX

/* ---- tokenizer_unicode.c: characters ---- */

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

/* ---- tokenizer_normal.c ---- */

struct affix {
    char text[TOKENIZER_AFFIX_NBYTES_MAX]; /* not NUL-terminated */
    size_t len;
};
enum normal_kind { NORMAL_NFC, NORMAL_PREPEND, NORMAL_REPLACE };
struct normal_step {
    enum normal_kind kind;
    struct affix from, to; /* Prepend has only `to` */
};

/* Spaces become a mark, and a text that begins without one gets one. */
enum metaspace_scheme { METASPACE_OFF, METASPACE_ALWAYS, METASPACE_FIRST, METASPACE_NEVER };
struct metaspace {
    enum metaspace_scheme scheme; /* FIRST: only the piece with which the whole text begins */
    struct affix mark;
    bool split; /* a word begins at each mark */
};

/* affix_read - a string of 1 to TOKENIZER_AFFIX_NBYTES_MAX bytes.
 * replace_read - the `pattern` and `content` of the Replace component `v`.
 * Errors: ERR_BAD_REQUEST at the member. */
int affix_read(struct affix *out, const json_t *v, const char *field, struct err *e);
int replace_read(struct affix *from, struct affix *to, const json_t *v, const char *field,
                 struct err *e);

/* normal_apply - *text through all steps of the normalizer; afterwards it is *text as it was, or
 * is in one of the scratch buffers. Errors: ERR_BAD_REQUEST (grows too long), ERR_NO_MEMORY. */
int normal_apply(const struct tokenizer *t, struct buf scratch[2], const char **text, size_t *len,
                 struct err *e);

/* metaspace_apply - `text` (not empty) as Metaspace makes it, in place of what `out` held.
 * @first  the whole text begins with this piece.  Errors: ERR_NO_MEMORY. */
int metaspace_apply(const struct metaspace *m, struct buf *out, const char *text, size_t len,
                    bool first, struct err *e);

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

/* For a text of `len` bytes; `len` also bounds the time for matching. NULL: no memory. */
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
    const char *content; /* borrowed from the tokenizer's arena, or `normal` */
    char *normal;        /* owned: the content, normalised; NULL unless the set is of such */
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
    uint32_t *word_slots; /* owned; hash of a word's bytes -> id + 1; NULL unless ignore_merges
                             or spelled */
    size_t n_word_slots;
    bool spelled;           /* symbols are characters, else bytes */
    bool byte_fallback;     /* spelled: characters without a token become the tokens of bytes */
    uint32_t byte_ids[256]; /* of bytes, of "<0x..>" when spelled; TOKENIZER_ID_NONE: has none */
    uint32_t unk_id;        /* TOKENIZER_ID_NONE: characters without a token are dropped */
    bool fuse_unk;
    bool ignore_merges; /* a word that is an entry of the vocabulary is not merged */
};
/* bpe_index - build the tables over merges (and over `t`'s tokens when ignore_merges or spelled).
 * The last of equal pairs wins. Errors: ERR_NO_MEMORY. */
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
    size_t cap;                 /* bytes of the longest word that fits */
    uint64_t n_moves;           /* of the heap's entries, over all words: what merging costs */
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
    int16_t byte;  /* of this token in a spelled decoder; -1: it is text */
    bool in_model; /* an entry of /model/vocab, not only an added token */
    bool mapped;   /* byte-level: the spelling is all of the byte alphabet */
    bool special;
    bool whole; /* bytes are valid UTF-8 by themselves */
};

/* One cut: every match and every gap between matches becomes a word of the next stage. */
struct stage {
    bool add_prefix_space; /* before matching, unless the word begins with a space */
    struct regex *re;      /* owned; NULL: the word stays whole */
};

/* How ids become text. */
enum decoder_kind { DECODER_BYTE_LEVEL, DECODER_SPELLED };
struct decoder {
    enum decoder_kind kind;
    struct affix from, to; /* spelled: replaced in every token; from.len 0: nothing is */
    bool byte_fallback;    /* spelled: runs of byte tokens are bytes of text */
    unsigned n_strip;      /* spelled: spaces that the whole text loses at its beginning */
};

struct tokenizer {
    char *arena;          /* owned; every text and byte string */
    struct token *tokens; /* owned */
    uint32_t n_tokens;    /* largest id + 1 */

    struct normal_step normal[TOKENIZER_NORMAL_STEPS_MAX];
    size_t n_normal;
    struct metaspace metaspace;
    struct added_set added_raw;        /* normalized: false */
    struct added_set added_normalized; /* normalized: true; contents are in normal form */
    struct stage stages[TOKENIZER_STAGES_MAX];
    size_t n_stages;
    struct bpe bpe;
    uint32_t prefix[TOKENIZER_TEMPLATE_IDS_MAX], suffix[TOKENIZER_TEMPLATE_IDS_MAX];
    size_t n_prefix, n_suffix;
    struct decoder decoder;
};

/* ---- one member of the root each, into `t` (zeroed before): tokenizer_normal.c, _decoder.c,
 * _parts.c. Errors: ERR_BAD_REQUEST naming the member that is malformed or not supported;
 * ERR_NO_MEMORY. ---- */
int tokenizer_parse_normalizer(struct tokenizer *t, const json_t *v, struct err *e);
int tokenizer_parse_decoder(struct tokenizer *t, const json_t *v, struct err *e);
int tokenizer_parse_pre(struct tokenizer *t, const json_t *v, struct err *e); /* needs decoder */
/* Needs the tokens: the template's ids are looked up. */
int tokenizer_parse_post(struct tokenizer *t, const json_t *v, struct err *e);

/* byte_token - the byte that a spelling like "<0x0A>" means; -1 for any other. */
int byte_token(const char *text, size_t len);
/* spelled_bytes - what a token of a spelled decoder decodes to, if it is not a byte; `bytes` has
 * space for TOKENIZER_REPLACE_GROWTH_MAX times `len`. Returns the number written. */
size_t spelled_bytes(const struct decoder *d, const char *text, size_t len, unsigned char *bytes);

#endif
