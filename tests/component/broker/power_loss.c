/* Keeps what a disk has that stores only what was synced: preloaded into a broker, it copies a file
 * at each of its syncs. $POWER_LOSS_DIR/<n> has every file as it was at its own last sync, at the
 * moment of the n-th sync of all. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {"broker.db", "broker.db-wal"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int count;

static void copy(const char *from, const char *to) {
    char fresh[PATH_MAX + 8], bytes[65536];
    (void)snprintf(fresh, sizeof fresh, "%s.new", to);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t size;
    while ((size = read(in, bytes, sizeof bytes)) > 0) {
        if (write(out, bytes, (size_t)size) != size) {
            abort();
        }
    }
    close(in);
    close(out);
    rename(fresh, to); /* a new file each time: earlier snapshots are links to the old one */
}

static void keep(int file) {
    const char *root = getenv("POWER_LOSS_DIR");
    char link_name[64], path[PATH_MAX] = "", kept[PATH_MAX + 64], folder[PATH_MAX], done[PATH_MAX];
    (void)snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", file);
    if (root == NULL || readlink(link_name, path, sizeof path - 1) < 0) {
        return;
    }
    const char *base = strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1;
    if (strcmp(base, names[0]) != 0 && strcmp(base, names[1]) != 0) {
        return;
    }
    pthread_mutex_lock(&lock);
    (void)snprintf(kept, sizeof kept, "%s/%s", root, base);
    copy(path, kept);
    (void)snprintf(folder, sizeof folder, "%s/%d.new", root, count);
    (void)snprintf(done, sizeof done, "%s/%d", root, count);
    mkdir(folder, 0700);
    for (int i = 0; i < 2; i++) {
        char beside[PATH_MAX + 64];
        (void)snprintf(kept, sizeof kept, "%s/%s", root, names[i]);
        (void)snprintf(beside, sizeof beside, "%s/%s", folder, names[i]);
        (void)link(kept, beside); /* not there before its first sync */
    }
    rename(folder, done);
    count++;
    pthread_mutex_unlock(&lock);
}

int fsync(int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int result = real(file);
    keep(file);
    return result;
}

int fdatasync(int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int result = real(file);
    keep(file);
    return result;
}
