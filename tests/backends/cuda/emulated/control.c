/* Settings, accounts, faults on request, and how the bindings find the calls. */
#define _GNU_SOURCE
#include "emulated.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const setting_names[SETTINGS] = {
    "devices", "memory", "addresses", "host", "version", "pages", "pools", "managed",
    "concurrent", "lazy", "report"};
static const char *const count_names[COUNTS] = {
    "allocations", "handles", "mappings", "reservations", "streams", "events",
    "host_blocks", "device_nbytes", "address_nbytes", "host_nbytes"};
long long settings[SETTINGS] = {1, 1LL << 30, 1LL << 45, 1LL << 34, 13000, 1, 1, 1, 1};
long long counts[COUNTS];

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static int owner, is_shut_down, is_held;
static long long calls, failing_call, misuse_count;
static Status failing_status;
static int fails_after, fails_on;
static char failing_name[64], last_failed[64], last_misuse[200];

static int index_of(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(name, names[i]))
            return i;
    fprintf(stderr, "emulated CUDA: nothing is called %s\n", name);
    abort();
}

EXPORT void emulated_set(const char *name, long long value)
{
    settings[index_of(name, setting_names, SETTINGS)] = value;
}

EXPORT long long emulated_count(const char *name)
{
    return counts[index_of(name, count_names, COUNTS)];
}

/* The call of this number, counted from the next, fails; before or after its work. */
EXPORT void emulated_fail(long long number, Status status, int after, int lasts)
{
    failing_call = calls + number;
    failing_status = number ? status : OK;
    fails_after = after;
    fails_on = lasts;
    failing_name[0] = 0;
    if (number)
        last_failed[0] = 0;
}

/* The next call of this name fails. */
EXPORT void emulated_fail_next(const char *name, Status status)
{
    emulated_fail(0, status, 0, 0);
    failing_status = status;
    last_failed[0] = 0;
    snprintf(failing_name, sizeof failing_name, "%s", name);
}

/* Let every call wait until it is let go. */
EXPORT void emulated_hold(int hold)
{
    pthread_mutex_lock(&turn);
    is_held = hold;
    pthread_cond_broadcast(&let_go);
    pthread_mutex_unlock(&turn);
}

EXPORT const char *emulated_failed(void) { return last_failed; }
EXPORT long long emulated_calls(void) { return calls; }
EXPORT long long emulated_misuses(void) { return misuse_count; }
EXPORT const char *emulated_misuse(void) { return last_misuse; }
EXPORT void emulated_forget_misuses(void) { misuse_count = 0; }
EXPORT void emulated_shut_down(int is_down) { is_shut_down = is_down; }

Status misuse(Status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_misuse, sizeof last_misuse, format, arguments);
    va_end(arguments);
    misuse_count++;
    return status;
}

static int fails_now(const char *name, int is_after)
{
    int is_due = calls == failing_call || (fails_on && calls > failing_call);
    if (failing_name[0]) {
        is_due = !strcmp(name, failing_name);
        if (is_due)
            failing_name[0] = 0;
    }
    return failing_status != OK && is_due && is_after == fails_after;
}

Status begin(const char *name, int makes)
{
    if (!owner)
        return NOT_INITIALIZED;
    if (owner != getpid())
        return NOT_INITIALIZED; /* and touch no lock: a thread that is gone has it */
    pthread_mutex_lock(&turn);
    while (is_held)
        pthread_cond_wait(&let_go, &turn);
    Status status = is_shut_down ? DEINITIALIZED : OK;
    if (status == OK) {
        calls++;
        if (fails_now(name, 0) || (makes && fails_now(name, 1))) {
            snprintf(last_failed, sizeof last_failed, "%s", name);
            status = failing_status;
        }
    }
    if (status != OK)
        pthread_mutex_unlock(&turn);
    return status;
}

Status end(const char *name, Status status)
{
    if (status == OK && fails_now(name, 1)) {
        snprintf(last_failed, sizeof last_failed, "%s", name);
        status = failing_status;
    }
    pthread_mutex_unlock(&turn);
    return status;
}

EXPORT Status cuInit(unsigned flags)
{
    if (flags)
        return INVALID_VALUE;
    if (owner && owner != getpid())
        return NOT_INITIALIZED;
    if (settings[DEVICES] == 0)
        return NO_DEVICE;
    owner = getpid();
    return OK;
}

EXPORT Status cuDriverGetVersion(int *version)
{
    *version = (int)settings[VERSION];
    return OK;
}

static const struct { Status status; const char *name, *text; } texts[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
};

static Status text_of(Status status, const char **text, int is_name)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].status == status) {
            *text = is_name ? texts[i].name : texts[i].text;
            return OK;
        }
    *text = NULL;
    return INVALID_VALUE;
}

EXPORT Status cuGetErrorName(Status status, const char **text)
{
    return text_of(status, text, 1);
}

EXPORT Status cuGetErrorString(Status status, const char **text)
{
    return text_of(status, text, 0);
}

/* A name stands for its newest version that the asking program knows. */
EXPORT Status cuGetProcAddress_v2(
    const char *name, void **function, int version, uint64_t flags, int *found)
{
    static const char *const suffixes[] = {"_v3", "_v2", ""};
    static void *self; /* by its own handle: others may have names like these */
    char full[160];
    (void)flags;
    if (!self) {
        Dl_info ours;
        dladdr((void *)cuInit, &ours);
        self = dlopen(ours.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    }
    *function = NULL;
    for (int i = 0; i < 3 && !*function; i++) {
        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        int is_of_13 = !strcmp(full, "cuCtxGetDevice_v2")
            || !strcmp(full, "cuCtxSynchronize_v2");
        if (!is_of_13 || version >= 13000)
            *function = dlsym(self, full);
    }
    if (found)
        *found = *function == NULL;
    return *function ? OK : NOT_FOUND;
}

__attribute__((constructor)) static void read_settings(void)
{
    const char *given = getenv("EMULATED_CUDA");
    char *text = strdup(given ? given : ""), *rest = text, *one;
    while ((one = strsep(&rest, ","))) {
        char *value = strchr(one, '=');
        if (value) {
            *value = 0;
            emulated_set(one, strtoll(value + 1, NULL, 0));
        }
    }
    free(text);
}

__attribute__((destructor)) static void report(void)
{
    if (!settings[REPORT] || owner != getpid())
        return;
    for (int i = 0; i < COUNTS; i++)
        if (counts[i])
            fprintf(stderr, "emulated CUDA: %lld %s left\n", counts[i], count_names[i]);
    if (misuse_count)
        fprintf(stderr, "emulated CUDA: %lld misuses: %s\n", misuse_count, last_misuse);
}
