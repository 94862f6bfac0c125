/* A disk whose every sync takes $SLOW_SYNC_US microseconds longer: preloaded into a broker. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait(void) {
    const char *time = getenv("SLOW_SYNC_US");
    if (time != NULL) {
        usleep((useconds_t)atoi(time));
    }
}

int fsync(int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait();
    return real(file);
}

int fdatasync(int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait();
    return real(file);
}
