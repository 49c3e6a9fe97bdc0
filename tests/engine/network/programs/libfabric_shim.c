/* A libfabric.so.1 that passes everything on to the real one, but pretends what SHIM says:
   old: an old version; short: a provider that sends 8,000 bytes at once, and tiny: 1,000; prefix: one that
   asks for room before each message; untagged: one that compares few bits of a tag; deaf: one without a
   descriptor to wait on; unopenable: one whose domains cannot be opened; cards: after all others, the
   provider SHIM_PROVIDER, which is tcp in truth, with the domains SHIM_DOMAINS; flip: a network that changes
   a bit of the first message with SHIM_MARK, SHIM_AT bytes from where that begins, or, if it is negative,
   from the message's end; spy: one that writes all names, messages and tags to the file SHIM_SPY. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
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

void fi_freeinfo(struct fi_info* info) {
  ((void (*)(struct fi_info*))real("fi_freeinfo"))(info);
}

struct fi_info* fi_dupinfo(const struct fi_info* info) {
  return ((struct fi_info * (*)(const struct fi_info*)) real("fi_dupinfo"))(info);
}

static void rename_it(char** name, const char* new_name) {
  free(*name);
  *name = strdup(new_name);
}

static char true_provider[64], true_domain[64];

/* Copies of the first offer of the provider tcp. */
static void add_cards(struct fi_info** info) {
  struct fi_info *last = *info, *model = NULL;
  for (struct fi_info* one = *info; one; one = one->next) {
    last = one;
    if (!model && strncmp(one->fabric_attr->prov_name, "tcp", 3) == 0) model = one;
  }
  if (!model) return;
  strncpy(true_provider, model->fabric_attr->prov_name, sizeof true_provider - 1);
  strncpy(true_domain, model->domain_attr->name, sizeof true_domain - 1);
  char domains[256] = {0};
  strncpy(domains, getenv("SHIM_DOMAINS"), sizeof domains - 1);
  for (char* domain = strtok(domains, ","); domain; domain = strtok(NULL, ",")) {
    struct fi_info* copy = fi_dupinfo(model);
    rename_it(&copy->fabric_attr->prov_name, getenv("SHIM_PROVIDER"));
    rename_it(&copy->domain_attr->name, domain);
    last->next = copy;
    last = copy;
  }
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
    if (pretends("untagged")) one->ep_attr->mem_tag_format = 0xffff;
  }
  const char* wanted = hints->fabric_attr->prov_name;
  if (!result && pretends("cards") && !(wanted && *wanted)) add_cards(info);
  return result;
}

const char* fi_strerror(int error) {
  return ((const char* (*)(int))real("fi_strerror"))(error);
}

/* --- what is sent -----------------------------------------------------------------------------------------
 */

static struct fi_ops_msg message_calls, true_messages;
static struct fi_ops_tagged tagged_calls, true_tagged;
static struct fi_ops_cm name_calls, true_names;
static struct fi_ops_av address_calls, true_addresses;

/* "m BYTES" of a message, "t TAG BYTES" of a tagged one, "a NAME" of an endpoint that this process talks to,
   "n NAME" of its own. */
static void note(const char* what, uint64_t tag, const void* data, size_t bytes) {
  FILE* file = fopen(getenv("SHIM_SPY"), "a");
  fprintf(file, "%s ", what);
  if (*what == 't') fprintf(file, "%llx ", (unsigned long long)tag);
  for (size_t i = 0; i < bytes; ++i) fprintf(file, "%02x", ((const unsigned char*)data)[i]);
  fprintf(file, "\n");
  fclose(file);
}

/* What goes on the wire in place of a message, whose own bytes stay as they are. */
static const void* on_the_wire(const void* data, size_t bytes) {
  static int done;
  const char* mark = getenv("SHIM_MARK");
  if (done || !pretends("flip")) return data;
  const char* found = memmem(data, bytes, mark, strlen(mark));
  if (!found) return data;
  done = 1;
  char* copy = malloc(bytes); /* for as long as the process lives */
  memcpy(copy, data, bytes);
  int at = atoi(getenv("SHIM_AT"));
  copy[at < 0 ? (long)bytes + at : found - (const char*)data + at] ^= 4;
  return copy;
}

static ssize_t send_it(struct fid_ep* end, const void* data, size_t bytes, void* description, fi_addr_t to,
                       void* context) {
  if (pretends("spy")) note("m", 0, data, bytes);
  return true_messages.send(end, on_the_wire(data, bytes), bytes, description, to, context);
}

static ssize_t inject_it(struct fid_ep* end, const void* data, size_t bytes, fi_addr_t to) {
  if (pretends("spy")) note("m", 0, data, bytes);
  return true_messages.inject(end, on_the_wire(data, bytes), bytes, to);
}

static ssize_t send_tagged(struct fid_ep* end, const void* data, size_t bytes, void* description,
                           fi_addr_t to, uint64_t tag, void* context) {
  if (pretends("spy")) note("t", tag, data, bytes);
  return true_tagged.send(end, on_the_wire(data, bytes), bytes, description, to, tag, context);
}

static int get_name(fid_t end, void* name, size_t* bytes) {
  int result = true_names.getname(end, name, bytes);
  if (!result) note("n", 0, name, *bytes);
  return result;
}

static int insert_it(struct fid_av* table, const void* name, size_t count, fi_addr_t* address, uint64_t flags,
                     void* context) {
  note("a", 0, name, 16); /* of provider tcp with IPv4 */
  return true_addresses.insert(table, name, count, address, flags, context);
}

/* --- what is opened ---------------------------------------------------------------------------------------
 */

static struct fi_ops_fabric fabric_calls;
static struct fi_ops_domain domain_calls;
static int (*open_domain)(struct fid_fabric*, struct fi_info*, struct fid_domain**, void*);
static int (*open_queue)(struct fid_domain*, struct fi_cq_attr*, struct fid_cq**, void*);

static int deaf_queue(struct fid_domain* domain, struct fi_cq_attr* attr, struct fid_cq** queue,
                      void* context) {
  return attr->wait_obj == FI_WAIT_NONE ? open_queue(domain, attr, queue, context) : -FI_ENOSYS;
}

static int (*open_table)(struct fid_domain*, struct fi_av_attr*, struct fid_av**, void*);
static int (*open_end)(struct fid_domain*, struct fi_info*, struct fid_ep**, void*);

static int watched_table(struct fid_domain* domain, struct fi_av_attr* attr, struct fid_av** table,
                         void* context) {
  int result = open_table(domain, attr, table, context);
  if (result || (*table)->ops == &address_calls) return result;
  address_calls = true_addresses = *(*table)->ops;
  address_calls.insert = insert_it;
  (*table)->ops = &address_calls;
  return 0;
}

static int watched_end(struct fid_domain* domain, struct fi_info* info, struct fid_ep** end, void* context) {
  int result = open_end(domain, info, end, context);
  if (result) return result;
  message_calls = true_messages = *(*end)->msg;
  tagged_calls = true_tagged = *(*end)->tagged;
  name_calls = true_names = *(*end)->cm;
  message_calls.send = send_it;
  message_calls.inject = inject_it;
  tagged_calls.send = send_tagged;
  if (pretends("spy")) name_calls.getname = get_name;
  (*end)->msg = &message_calls;
  (*end)->tagged = &tagged_calls;
  (*end)->cm = &name_calls;
  return 0;
}

static int other_domain(struct fid_fabric* fabric, struct fi_info* info, struct fid_domain** domain,
                        void* context) {
  if (pretends("unopenable")) return -FI_ENOMEM;
  if (pretends("cards") && strcmp(info->fabric_attr->prov_name, true_provider) == 0) {
    rename_it(&info->domain_attr->name, true_domain);
  }
  int result = open_domain(fabric, info, domain, context);
  if (result) return result;
  domain_calls = *(*domain)->ops;
  if (pretends("deaf")) {
    open_queue = domain_calls.cq_open;
    domain_calls.cq_open = deaf_queue;
  }
  if (pretends("flip") || pretends("spy")) {
    open_end = domain_calls.endpoint;
    domain_calls.endpoint = watched_end;
  }
  if (pretends("spy")) {
    open_table = domain_calls.av_open;
    domain_calls.av_open = watched_table;
  }
  (*domain)->ops = &domain_calls;
  return 0;
}

int fi_fabric(struct fi_fabric_attr* attr, struct fid_fabric** fabric, void* context) {
  int (*open)(struct fi_fabric_attr*, struct fid_fabric**, void*) = real("fi_fabric");
  if (pretends("cards") && strcmp(attr->prov_name, getenv("SHIM_PROVIDER")) == 0) {
    rename_it(&attr->prov_name, true_provider);
  }
  int result = open(attr, fabric, context);
  if (result || (*fabric)->ops == &fabric_calls) return result;
  fabric_calls = *(*fabric)->ops;
  open_domain = fabric_calls.domain;
  fabric_calls.domain = other_domain;
  (*fabric)->ops = &fabric_calls;
  return 0;
}
