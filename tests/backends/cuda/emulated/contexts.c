/* Devices, their primary contexts, and which one a thread has current. */
#define _GNU_SOURCE
#include "emulated.h"
#include <stdio.h>
#include <string.h>

Context contexts[MOST_DEVICES];
static __thread Context *stack[64];
static __thread int depth;

static int is_device(int device)
{
    return device >= 0 && device < settings[DEVICES] && device < MOST_DEVICES;
}

Status current_context(Context **found)
{
    Context *context = depth ? stack[depth - 1] : NULL;
    if (!context || !context->retained)
        return misuse(INVALID_CONTEXT, "a call without a context");
    *found = context;
    return context->broken;
}

Status take_device_memory(int device, size_t nbytes)
{
    Context *context = &contexts[device];
    if ((unsigned long long)context->taken_nbytes + nbytes
        > (unsigned long long)settings[MEMORY])
        return OUT_OF_MEMORY;
    context->taken_nbytes += (long long)nbytes;
    counts[DEVICE_NBYTES] += (long long)nbytes;
    return OK;
}

void give_device_memory(int device, size_t nbytes)
{
    contexts[device].taken_nbytes -= (long long)nbytes;
    counts[DEVICE_NBYTES] -= (long long)nbytes;
}

/* What a test may do: make contexts usable again after an illegal access. */
EXPORT void emulated_mend(void)
{
    for (int i = 0; i < MOST_DEVICES; i++)
        contexts[i].broken = OK;
}

/* What a test may do: have no context current in this thread. */
EXPORT void emulated_leave(void) { depth = 0; }

CALL(cuDeviceGetCount, (int *count), (count))
{
    *count = (int)settings[DEVICES];
    return OK;
}

CALL(cuDeviceGet, (int *device, int ordinal), (device, ordinal))
{
    if (!is_device(ordinal))
        return misuse(INVALID_DEVICE, "cuDeviceGet %d", ordinal);
    *device = ordinal;
    return OK;
}

CALL(cuDeviceGetName, (char *name, int size, int device), (name, size, device))
{
    snprintf(name, (size_t)size, "Emulated CUDA device %d", device);
    return OK;
}

CALL(cuDeviceGetUuid_v2, (char *uuid, int device), (uuid, device))
{
    memset(uuid, 0xE5, 16);
    uuid[15] = (char)device;
    return OK;
}

CALL(cuDeviceTotalMem_v2, (size_t *nbytes, int device), (nbytes, device))
{
    if (!is_device(device))
        return misuse(INVALID_DEVICE, "cuDeviceTotalMem %d", device);
    *nbytes = (size_t)settings[MEMORY];
    return OK;
}

CALL(cuDeviceGetPCIBusId, (char *text, int size, int device), (text, size, device))
{
    snprintf(text, (size_t)size, "0000:%02x:00.0", device);
    return OK;
}

CALL(cuDeviceGetAttribute, (int *value, int name, int device), (value, name, device))
{
    if (!is_device(device))
        return misuse(INVALID_DEVICE, "cuDeviceGetAttribute %d", device);
    switch (name) {
    case 1: *value = 1024; break;                    /* threads in a block */
    case 10: *value = 32; break;                     /* threads in a warp */
    case 33: *value = device; break;                 /* PCI bus */
    case 34: *value = 0; break;                      /* PCI device */
    case 75: *value = 9; break;                      /* compute capability */
    case 76: *value = 0; break;
    case 83: *value = (int)settings[MANAGED]; break;
    case 89: *value = (int)settings[CONCURRENT]; break;
    case 102: *value = (int)settings[PAGES]; break;
    case 115: *value = (int)settings[POOLS]; break;
    default: *value = 1;
    }
    return OK;
}

CALL(cuDeviceCanAccessPeer, (int *can, int a, int b), (can, a, b))
{
    *can = is_device(a) && is_device(b) && a != b;
    return OK;
}

CALL(cuDevicePrimaryCtxRetain, (Context **context, int device), (context, device))
{
    if (!is_device(device))
        return misuse(INVALID_DEVICE, "cuDevicePrimaryCtxRetain %d", device);
    contexts[device].device = device;
    contexts[device].retained++;
    *context = &contexts[device];
    return OK;
}

CALL(cuDevicePrimaryCtxRelease_v2, (int device), (device))
{
    if (!is_device(device) || !contexts[device].retained)
        return misuse(INVALID_CONTEXT, "cuDevicePrimaryCtxRelease %d", device);
    contexts[device].retained--;
    return OK;
}

CALL(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *is_active),
     (device, flags, is_active))
{
    *flags = 0;
    *is_active = is_device(device) && contexts[device].retained > 0;
    return OK;
}

CALL(cuCtxSetCurrent, (Context *context), (context))
{
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return OK;
}

CALL(cuCtxGetCurrent, (Context **context), (context))
{
    *context = depth ? stack[depth - 1] : NULL;
    return OK;
}

CALL(cuCtxPushCurrent_v2, (Context *context), (context))
{
    if (!context || !context->retained || depth == 64)
        return misuse(INVALID_CONTEXT, "cuCtxPushCurrent");
    stack[depth++] = context;
    return OK;
}

CALL(cuCtxPopCurrent_v2, (Context **context), (context))
{
    if (!depth)
        return misuse(INVALID_CONTEXT, "cuCtxPopCurrent of nothing");
    depth--;
    if (context)
        *context = stack[depth];
    return OK;
}

CALL(cuCtxGetDevice, (int *device), (device))
{
    NEED(context);
    *device = context->device;
    return OK;
}

CALL(cuCtxGetDevice_v2, (int *device, Context *given), (device, given))
{
    if (given) {
        *device = given->device;
        return OK;
    }
    NEED(context);
    *device = context->device;
    return OK;
}

CALL(cuCtxGetId, (Context *given, unsigned long long *id), (given, id))
{
    if (!given) {
        NEED(context);
        given = context;
    }
    *id = 1ULL + (unsigned long long)given->device;
    return OK;
}

CALL(cuCtxGetApiVersion, (Context *given, unsigned *version), (given, version))
{
    (void)given;
    *version = 3020;
    return OK;
}

CALL(cuCtxGetFlags, (unsigned *flags), (flags))
{
    *flags = 0;
    return OK;
}

CALL(cuCtxGetStreamPriorityRange, (int *least, int *greatest), (least, greatest))
{
    *least = 0;
    *greatest = -5;
    return OK;
}
