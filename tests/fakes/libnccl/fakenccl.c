/* State, failing on demand, and what the library says of itself. */
#include "tests/fakes/libnccl/fakenccl_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 64, TEXT_MAX = 1024 };

struct fake_nccl fake_nccl = {.lock = PTHREAD_MUTEX_INITIALIZER,
                              .changed = PTHREAD_COND_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char texts[TEXTS][TEXT_MAX]; /* the last few, so that a reader's stays as it is */
static atomic_uint n_texts;
static _Atomic(const char *) last_text = "";

uint64_t fake_number(const char *name, uint64_t def)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 10) : def;
}

int fake_version(void)
{
    return (int)fake_number("FAKENCCL_VERSION", FAKE_VERSION);
}

void fake_warn(const char *fmt, ...)
{
    char *text = texts[atomic_fetch_add(&n_texts, 1) % TEXTS];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, TEXT_MAX, fmt, args);
    va_end(args);
    atomic_store(&last_text, text);
}

static void configure(void)
{
    (void)pthread_mutex_lock(&fake_nccl.lock);
    fake_nccl.fail_call = getenv("FAKENCCL_FAIL_CALL");
    fake_nccl.fail_result = (ncclResult_t)fake_number("FAKENCCL_FAIL_RESULT", ncclInternalError);
    fake_nccl.fail_nth = fake_number("FAKENCCL_FAIL_NTH", 0);
    (void)pthread_mutex_unlock(&fake_nccl.lock);
}

ncclResult_t fake_enter(const char *call)
{
    ncclResult_t result = ncclSuccess;

    (void)pthread_once(&once, configure);
    (void)atomic_fetch_add(&fake_nccl.n_calls, 1);
    (void)pthread_mutex_lock(&fake_nccl.lock);
    if (fake_nccl.fail_nth > 0 &&
        (fake_nccl.fail_call == NULL || strcmp(fake_nccl.fail_call, call) == 0) &&
        --fake_nccl.fail_nth == 0)
        result = fake_nccl.fail_result;
    (void)pthread_mutex_unlock(&fake_nccl.lock);
    if (result != ncclSuccess)
        fake_warn("%s : as the fake was told", call);
    return result;
}

ncclResult_t fake_enter_comm(const char *call, ncclComm_t comm, bool *entered)
{
    ncclResult_t result = fake_enter(call);
    struct ncclComm *c;
    bool race = false;

    (void)pthread_mutex_lock(&fake_nccl.lock);
    for (c = fake_nccl.comms; c != NULL && c != comm; c = c->next)
        ;
    if (c != NULL)
        race = c->inside;
    *entered = c != NULL && !race;
    if (*entered)
        c->inside = true;
    (void)pthread_mutex_unlock(&fake_nccl.lock);
    if (*entered)
        return result;
    if (race) {
        (void)atomic_fetch_add(&fake_nccl.n_races, 1);
        fake_warn("%s : another thread is in this communicator", call);
        return ncclInternalError;
    }
    fake_warn("%s : comm argument is %s", call, comm == NULL ? "NULL" : "not a communicator");
    return ncclInvalidArgument;
}

void fake_leave_comm(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&fake_nccl.lock);
    comm->inside = false;
    (void)pthread_mutex_unlock(&fake_nccl.lock);
}

void fakenccl_counts(struct fakenccl_counts *out)
{
    *out = (struct fakenccl_counts){
        .n_comms = atomic_load(&fake_nccl.n_comms),
        .n_jobs = atomic_load(&fake_nccl.n_jobs),
        .n_sockets = atomic_load(&fake_nccl.n_sockets),
        .n_roots = atomic_load(&fake_nccl.n_roots),
        .n_hung = atomic_load(&fake_nccl.n_hung),
        .n_calls = atomic_load(&fake_nccl.n_calls),
        .n_comms_made = atomic_load(&fake_nccl.n_comms_made),
        .n_aborts = atomic_load(&fake_nccl.n_aborts),
        .n_broadcasts = atomic_load(&fake_nccl.n_broadcasts),
        .n_all_reduces = atomic_load(&fake_nccl.n_all_reduces),
        .n_gone = atomic_load(&fake_nccl.n_gone),
        .n_races = atomic_load(&fake_nccl.n_races),
        .nbytes = atomic_load(&fake_nccl.nbytes),
    };
}

uint64_t fakenccl_queued(void)
{
    return atomic_load(&fake_nccl.n_queued);
}

void fakenccl_fail(const char *call, uint64_t nth)
{
    (void)pthread_once(&once, configure);
    (void)pthread_mutex_lock(&fake_nccl.lock);
    fake_nccl.fail_call = call;
    fake_nccl.fail_nth = nth;
    (void)pthread_mutex_unlock(&fake_nccl.lock);
}

void fakenccl_release_aborts(void)
{
    (void)pthread_mutex_lock(&fake_nccl.lock);
    fake_nccl.aborts_released = true;
    (void)pthread_cond_broadcast(&fake_nccl.changed);
    (void)pthread_mutex_unlock(&fake_nccl.lock);
}

__attribute__((destructor)) static void write_report(void)
{
    const char *path = getenv("FAKENCCL_REPORT");
    struct fakenccl_counts c;
    FILE *to = path != NULL ? fopen(path, "we") : NULL;

    if (to == NULL)
        return;
    fakenccl_counts(&c);
    (void)fprintf(to,
                  "{\"comms\": %llu, \"jobs\": %llu, \"sockets\": %llu, \"comms_made\": %llu, "
                  "\"aborts\": %llu, \"broadcasts\": %llu, \"all_reduces\": %llu, "
                  "\"races\": %llu, \"bytes\": %llu}\n",
                  (unsigned long long)c.n_comms, (unsigned long long)c.n_jobs,
                  (unsigned long long)c.n_sockets, (unsigned long long)c.n_comms_made,
                  (unsigned long long)c.n_aborts, (unsigned long long)c.n_broadcasts,
                  (unsigned long long)c.n_all_reduces, (unsigned long long)c.n_races,
                  (unsigned long long)c.nbytes);
    (void)fclose(to);
}

/* The texts are the library's own. */
const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const known[] = {
        [ncclSuccess] = "no error",
        [ncclUnhandledCudaError] = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        [ncclSystemError] = "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        [ncclInternalError] = "internal error - please report this issue to the NCCL developers",
        [ncclInvalidArgument] = "invalid argument (run with NCCL_DEBUG=WARN for details)",
        [ncclInvalidUsage] = "invalid usage (run with NCCL_DEBUG=WARN for details)",
        [ncclRemoteError] = "remote process exited or there was a network error",
        [ncclInProgress] = "NCCL operation in progress",
    };

    if (result < 0 || (size_t)result >= sizeof known / sizeof known[0])
        return "unknown result code";
    return known[result];
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm; /* there, too, it is the process's */
    return atomic_load(&last_text);
}

ncclResult_t ncclGetVersion(int *version)
{
    ncclResult_t result = fake_enter("ncclGetVersion");

    if (result != ncclSuccess)
        return result;
    if (version == NULL) {
        fake_warn("GetVersion : version argument is NULL");
        return ncclInvalidArgument;
    }
    *version = fake_version();
    return ncclSuccess;
}
