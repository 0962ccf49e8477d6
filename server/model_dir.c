/* Only names of files are checked here; their content is checked by what reads it. */
#include "server/model_dir.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_LEN_MAX = 4096 };

/* 0, or an errno. */
static int file_stat(const char *dir, const char *name, struct stat *st)
{
    char path[PATH_LEN_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return ENAMETOOLONG;
    return stat(path, st) == 0 ? 0 : errno;
}

/* "Qwen/Qwen3-0.6B": two components, as in names of a hub; "./dir/model" and "~/model" are paths.
 */
static bool is_hub_name(const char *text)
{
    const char *slash = strchr(text, '/');

    return slash != NULL && slash != text && slash[1] != '\0' && strchr(slash + 1, '/') == NULL &&
           text[0] != '.' && text[0] != '~';
}

static int dir_missing(const char *dir, struct err *e)
{
    if (is_hub_name(dir))
        return err_set(e, ERR_NOT_FOUND, "",
                       "there is no directory '%.100s'; a local one is expected, models are not "
                       "downloaded: 'huggingface-cli download %.100s --local-dir DIR', then "
                       "--model DIR",
                       dir, dir);
    return err_set(e, ERR_NOT_FOUND, "",
                   "there is no directory '%.200s'; a local Hugging Face model directory is "
                   "expected",
                   dir);
}

int model_dir_check(const char *dir, struct err *e)
{
    struct stat st;
    int why = file_stat(dir, ".", &st);

    if (why == ENOENT)
        return dir_missing(dir, e);
    if (why == ENOTDIR)
        return err_set(e, ERR_UNREADABLE, "",
                       "'%.200s' is a file; the directory that holds config.json is expected", dir);
    if (why == 0)
        why = file_stat(dir, "config.json", &st);
    if (why == ENOENT)
        return err_set(e, ERR_NOT_FOUND, "",
                       "'%.200s' has no config.json; a Hugging Face model directory is expected: "
                       "config.json, tokenizer.json and *.safetensors",
                       dir);
    return why == 0 ? 0 : err_set_errno(e, ERR_UNREADABLE, "", why, "'%.200s' cannot be read", dir);
}

int model_dir_weights(bool *out, const char *dir, const char *otherwise, struct err *e)
{
    static const char *const ours[] = {"model.safetensors", "model.safetensors.index.json"};
    static const char *const theirs[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                         "consolidated.00.pth", "tf_model.h5",
                                         "flax_model.msgpack"};
    struct stat st;

    *out = false;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        *out = *out || file_stat(dir, ours[i], &st) == 0;
    for (size_t i = 0; !*out && i < sizeof theirs / sizeof theirs[0]; i++)
        if (file_stat(dir, theirs[i], &st) == 0)
            return err_set(e, ERR_BAD_REQUEST, "",
                           "'%.150s' has its weights in %s, and only .safetensors is read: convert "
                           "them (save_pretrained of transformers writes model.safetensors), or %s",
                           dir, theirs[i], otherwise);
    return 0;
}
