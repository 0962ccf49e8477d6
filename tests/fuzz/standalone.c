/* Replays a corpus through LLVMFuzzerTestOneInput, so that plain ctest runs what a fuzzer found. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { INPUT_NBYTES_MAX = 16 << 20 };

static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(INPUT_NBYTES_MAX);
    size_t len;

    if (f == NULL || data == NULL) {
        (void)fprintf(stderr, "cannot read %s\n", path);
        return -1;
    }
    len = fread(data, 1, INPUT_NBYTES_MAX, f);
    (void)fclose(f);
    (void)LLVMFuzzerTestOneInput(data, len);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    const struct dirent *entry;
    char path[4096];
    unsigned n = 0;

    if (dir == NULL) {
        (void)fprintf(stderr, "usage: %s CORPUS_DIR\n", argv[0]);
        return 2;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        if (replay(path) != 0)
            return 1;
        n++;
    }
    (void)closedir(dir);
    (void)printf("%u inputs replayed\n", n);
    return n > 0 ? 0 : 1;
}
