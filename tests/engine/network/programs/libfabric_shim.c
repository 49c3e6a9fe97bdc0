/* A libfabric.so.1 that passes everything on to the real one, but pretends what SHIM says:
   old: an old version; short: a provider that sends 8,000 bytes at once, and tiny: 1,000; prefix: one that
   asks for room before each message; deaf: one without a descriptor to wait on. */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <stdlib.h>
#include <string.h>

static void* real(const char* name) {
  static void* library;
  if (!library) library = dlopen(getenv("SHIM_REAL"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(library, name);
}

static int pretends(const char* what) {
  return strcmp(getenv("SHIM"), what) == 0;
}

uint32_t fi_version(void) {
  return pretends("old") ? FI_VERSION(1, 5) : ((uint32_t (*)(void))real("fi_version"))();
}

int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
               const struct fi_info* hints, struct fi_info** info) {
  int (*get)(uint32_t, const char*, const char*, uint64_t, const struct fi_info*, struct fi_info**) =
      real("fi_getinfo");
  int result = get(version, node, service, flags, hints, info);
  for (struct fi_info* one = result ? NULL : *info; one; one = one->next) {
    if (pretends("short")) one->ep_attr->max_msg_size = 8000;
    if (pretends("tiny")) one->ep_attr->max_msg_size = 1000;
    if (pretends("prefix")) one->mode |= FI_MSG_PREFIX;
  }
  return result;
}

void fi_freeinfo(struct fi_info* info) {
  ((void (*)(struct fi_info*))real("fi_freeinfo"))(info);
}

struct fi_info* fi_dupinfo(const struct fi_info* info) {
  return ((struct fi_info * (*)(const struct fi_info*)) real("fi_dupinfo"))(info);
}

const char* fi_strerror(int error) {
  return ((const char* (*)(int))real("fi_strerror"))(error);
}

static struct fi_ops_fabric fabric_calls;
static struct fi_ops_domain domain_calls;
static int (*open_domain)(struct fid_fabric*, struct fi_info*, struct fid_domain**, void*);
static int (*open_queue)(struct fid_domain*, struct fi_cq_attr*, struct fid_cq**, void*);

static int deaf_queue(struct fid_domain* domain, struct fi_cq_attr* attr, struct fid_cq** queue,
                      void* context) {
  return attr->wait_obj == FI_WAIT_NONE ? open_queue(domain, attr, queue, context) : -FI_ENOSYS;
}

static int deaf_domain(struct fid_fabric* fabric, struct fi_info* info, struct fid_domain** domain,
                       void* context) {
  int result = open_domain(fabric, info, domain, context);
  if (result) return result;
  domain_calls = *(*domain)->ops;
  open_queue = domain_calls.cq_open;
  domain_calls.cq_open = deaf_queue;
  (*domain)->ops = &domain_calls;
  return 0;
}

int fi_fabric(struct fi_fabric_attr* attr, struct fid_fabric** fabric, void* context) {
  int (*open)(struct fi_fabric_attr*, struct fid_fabric**, void*) = real("fi_fabric");
  int result = open(attr, fabric, context);
  if (result || !pretends("deaf")) return result;
  if ((*fabric)->ops == &fabric_calls) return 0;
  fabric_calls = *(*fabric)->ops;
  open_domain = fabric_calls.domain;
  fabric_calls.domain = deaf_domain;
  (*fabric)->ops = &fabric_calls;
  return 0;
}
