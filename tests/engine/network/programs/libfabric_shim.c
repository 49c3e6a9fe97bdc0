/* A libfabric.so.1 that passes everything on to the real one, but pretends what SHIM lists:

   old: an old version; short: a provider that sends 8,000 bytes at once, and tiny: 1,000; prefix: one that
   asks for room before each message; untagged: one that compares few bits of a tag; deaf: one without a
   descriptor to wait on; unopenable: one whose domains cannot be opened; cards: after all others, the
   provider SHIM_PROVIDER, which is tcp in truth, with the domains SHIM_DOMAINS.

   flip: a network that changes a bit of the first message with SHIM_MARK that this process sends or reads
   remotely, SHIM_AT bytes from where that begins, or, if it is negative, from the message's end; spy: one
   that writes all names, messages and tags to the file SHIM_SPY.

   unread: a provider without remote reads; automatic: one with threads of its own; delivered: one that
   completes what has been delivered only; shuffled: one whose completions come in any order, some of them
   late.

   plain: a provider that addresses registered memory by offsets and takes our keys; local: one that demands
   that all memory is registered; bound: one that demands that memory is bound to the endpoint; few: one with
   room for 24 regions, which it says, and full: which it does not say. What breaks these demands aborts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define MOST_REGIONS 24

static void* real(const char* name) {
  static void* library;
  if (!library) library = dlopen(getenv("SHIM_REAL"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(library, name);
}

static int pretends(const char* what) {
  const size_t length = strlen(what);
  for (const char* at = getenv("SHIM"); (at = strstr(at, what)); at += length) {
    if ((at == getenv("SHIM") || at[-1] == ',') && (at[length] == 0 || at[length] == ',')) return 1;
  }
  return 0;
}

static void demand(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "libfabric_shim: %s\n", what);
  abort();
}

/* --- what there is ----------------------------------------------------------------------------------------
 */

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
  if (pretends("unread") && hints->caps & FI_RMA) return -FI_ENODATA;
  const int mode = hints->domain_attr->mr_mode;
  if (pretends("plain")) hints->domain_attr->mr_mode &= ~(FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED);
  if (pretends("automatic")) hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
  char* wanted = hints->fabric_attr->prov_name;
  const int any = !wanted || !*wanted || (pretends("cards") && strcmp(wanted, getenv("SHIM_PROVIDER")) == 0);
  if (any) hints->fabric_attr->prov_name = NULL;
  int result = get(version, node, service, flags, hints, info);
  hints->fabric_attr->prov_name = wanted;
  for (struct fi_info* one = result ? NULL : *info; one; one = one->next) {
    struct fi_domain_attr* domain = one->domain_attr;
    if (pretends("short")) one->ep_attr->max_msg_size = 8000;
    if (pretends("tiny")) one->ep_attr->max_msg_size = 1000;
    if (pretends("prefix")) one->mode |= FI_MSG_PREFIX;
    if (pretends("untagged")) one->ep_attr->mem_tag_format = 0xffff;
    if (pretends("local")) demand(mode & FI_MR_LOCAL, "FI_MR_LOCAL is not offered");
    if (pretends("bound")) demand(mode & FI_MR_ENDPOINT, "FI_MR_ENDPOINT is not offered");
    if (pretends("local")) domain->mr_mode |= FI_MR_LOCAL;
    if (pretends("bound")) domain->mr_mode |= FI_MR_ENDPOINT;
    if (pretends("few")) domain->mr_cnt = MOST_REGIONS;
  }
  if (!result && pretends("cards") && any) add_cards(info);
  return result;
}

/* Once the program has read what is pretended. */
static void ask_for_what_there_is(struct fi_info* info) {
  struct fi_domain_attr* domain = info->domain_attr;
  if (pretends("local")) domain->mr_mode &= ~FI_MR_LOCAL;
  if (pretends("bound")) domain->mr_mode &= ~FI_MR_ENDPOINT;
  if (pretends("few")) domain->mr_cnt = 0;
}

const char* fi_strerror(int error) {
  return ((const char* (*)(int))real("fi_strerror"))(error);
}

/* --- what goes on the wire --------------------------------------------------------------------------------
 */

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

/* Where to change the first message that has the mark; NULL: not in this one. */
static const char* place_to_flip(const char* data, size_t bytes) {
  static int done;
  const char* mark = getenv("SHIM_MARK");
  const char* found = done || !pretends("flip") ? NULL : memmem(data, bytes, mark, strlen(mark));
  if (!found) return NULL;
  done = 1;
  const int at = atoi(getenv("SHIM_AT"));
  return at < 0 ? data + bytes + at : found + at;
}

/* What goes on the wire in place of a message, whose own bytes stay as they are. */
static const void* on_the_wire(const void* data, size_t bytes) {
  const char* place = place_to_flip(data, bytes);
  if (!place) return data;
  char* copy = malloc(bytes); /* for as long as the process lives */
  memcpy(copy, data, bytes);
  copy[place - (const char*)data] ^= 4;
  return copy;
}

/* What is being read remotely, until it has come. */
#define MOST_READS 256
static struct {
  void* context;
  char* data;
  size_t bytes;
} reads[MOST_READS];

static void begin_read(void* context, void* data, size_t bytes) {
  int i = 0;
  while (i < MOST_READS && reads[i].context) ++i;
  demand(i < MOST_READS, "too many reads to follow");
  reads[i].context = context;
  reads[i].data = data;
  reads[i].bytes = bytes;
}

static void end_read(void* context) {
  for (int i = 0; i < MOST_READS; ++i) {
    if (!context || reads[i].context != context) continue;
    char* place = (char*)place_to_flip(reads[i].data, reads[i].bytes);
    if (place) *place ^= 4;
    reads[i].context = NULL;
  }
}

/* --- registered memory ------------------------------------------------------------------------------------
 */

struct region {
  struct fid_mr mr; /* the program's; its descriptor is the region */
  struct fid_mr* real;
  const char* begin;
  size_t bytes;
  int bound, enabled;
  struct region* next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct region* regions;
static int count;

static struct region* region_of(void* description) {
  pthread_mutex_lock(&lock);
  struct region* one = regions;
  while (one && one != description) one = one->next;
  pthread_mutex_unlock(&lock);
  return one;
}

static int close_region(struct fid* fid) {
  struct region* region = (struct region*)fid;
  pthread_mutex_lock(&lock);
  struct region** at = &regions;
  while (*at != region) at = &(*at)->next;
  *at = region->next;
  --count;
  pthread_mutex_unlock(&lock);
  int result = fi_close(&region->real->fid);
  free(region);
  return result;
}

static int bind_region(struct fid* fid, struct fid* to, uint64_t flags) {
  (void)flags;
  demand(to->fclass == FI_CLASS_EP, "a region is bound to something else than an endpoint");
  ((struct region*)fid)->bound = 1;
  return 0;
}

static int control_region(struct fid* fid, int command, void* argument) {
  (void)argument;
  struct region* region = (struct region*)fid;
  demand(command == FI_ENABLE && region->bound, "a region is enabled before it is bound");
  region->enabled = 1;
  region->mr.key = region->real->key;
  return 0;
}

static struct fi_ops region_calls = {
    .size = sizeof region_calls, .close = close_region, .bind = bind_region, .control = control_region};
static int (*reg)(struct fid*, const void*, size_t, uint64_t, uint64_t, uint64_t, uint64_t, struct fid_mr**,
                  void*);

static int pretended_reg(struct fid* domain, const void* data, size_t bytes, uint64_t access, uint64_t offset,
                         uint64_t key, uint64_t flags, struct fid_mr** mr, void* context) {
  unsigned char* pages = malloc(bytes / PAGE + 2);
  const unsigned long first = (unsigned long)data / PAGE * PAGE;
  demand(mincore((void*)first, (unsigned long)data + bytes - first, pages) == 0, "memory that is not there");
  free(pages);
  pthread_mutex_lock(&lock);
  const int too_many = count++ >= MOST_REGIONS;
  pthread_mutex_unlock(&lock);
  demand(!too_many || !pretends("few"), "more regions than there is room for");
  struct region* region = calloc(1, sizeof *region);
  int result = -FI_ENOSPC;
  if (!too_many || !pretends("full"))
    result = reg(domain, data, bytes, access, offset, key, flags, &region->real, context);
  if (result) {
    pthread_mutex_lock(&lock);
    --count;
    pthread_mutex_unlock(&lock);
    free(region);
    return result;
  }
  region->mr = *region->real;
  region->mr.mem_desc = region;
  region->mr.fid.ops = &region_calls;
  if (pretends("bound")) region->mr.key = FI_KEY_NOTAVAIL;
  region->begin = data;
  region->bytes = bytes;
  pthread_mutex_lock(&lock);
  region->next = regions;
  regions = region;
  pthread_mutex_unlock(&lock);
  *mr = &region->mr;
  return 0;
}

/* The real description of memory that a call uses. */
static void* described(const void* data, size_t bytes, void* description) {
  if (!description) {
    demand(!pretends("local"), "memory without a description");
    return NULL;
  }
  struct region* region = region_of(description);
  demand(region != NULL, "a description of a region that is closed");
  demand(region->begin <= (const char*)data && (const char*)data + bytes <= region->begin + region->bytes,
         "a description of other memory");
  demand(region->enabled || !pretends("bound"), "a region that is not enabled");
  return region->real->mem_desc;
}

/* --- endpoints --------------------------------------------------------------------------------------------
 */

static struct fi_ops endpoint_calls;
static struct fi_ops_msg message_calls, real_messages;
static struct fi_ops_tagged tagged_calls, real_tagged;
static struct fi_ops_rma memory_calls, real_memory;
static struct fi_ops_cm name_calls, real_names;
static struct fi_ops_av address_calls, real_addresses;
static int (*control_endpoint)(struct fid*, int, void*);
static int (*open_endpoint)(struct fid_domain*, struct fi_info*, struct fid_ep**, void*);

static ssize_t pretended_recv(struct fid_ep* ep, void* data, size_t bytes, void* desc, fi_addr_t from,
                              void* context) {
  return real_messages.recv(ep, data, bytes, described(data, bytes, desc), from, context);
}

static ssize_t pretended_send(struct fid_ep* ep, const void* data, size_t bytes, void* desc, fi_addr_t to,
                              void* context) {
  if (pretends("spy")) note("m", 0, data, bytes);
  return real_messages.send(ep, on_the_wire(data, bytes), bytes, described(data, bytes, desc), to, context);
}

static ssize_t pretended_inject(struct fid_ep* ep, const void* data, size_t bytes, fi_addr_t to) {
  if (pretends("spy")) note("m", 0, data, bytes);
  return real_messages.inject(ep, on_the_wire(data, bytes), bytes, to);
}

static ssize_t pretended_trecv(struct fid_ep* ep, void* data, size_t bytes, void* desc, fi_addr_t from,
                               uint64_t tag, uint64_t ignored, void* context) {
  return real_tagged.recv(ep, data, bytes, described(data, bytes, desc), from, tag, ignored, context);
}

static ssize_t pretended_tsend(struct fid_ep* ep, const void* data, size_t bytes, void* desc, fi_addr_t to,
                               uint64_t tag, void* context) {
  demand(!pretends("short") || bytes <= 8000, "a longer message than the provider sends");
  if (pretends("spy")) note("t", tag, data, bytes);
  return real_tagged.send(ep, on_the_wire(data, bytes), bytes, described(data, bytes, desc), to, tag,
                          context);
}

static ssize_t pretended_read(struct fid_ep* ep, void* data, size_t bytes, void* desc, fi_addr_t from,
                              uint64_t address, uint64_t key, void* context) {
  demand(!pretends("unread"), "a remote read");
  demand(!pretends("short") || bytes <= 8000, "a longer message than the provider reads");
  ssize_t result =
      real_memory.read(ep, data, bytes, described(data, bytes, desc), from, address, key, context);
  if (!result && pretends("flip")) begin_read(context, data, bytes);
  return result;
}

static int pretended_name(fid_t end, void* name, size_t* bytes) {
  int result = real_names.getname(end, name, bytes);
  if (!result && pretends("spy")) note("n", 0, name, *bytes);
  return result;
}

static int pretended_insert(struct fid_av* table, const void* name, size_t count, fi_addr_t* address,
                            uint64_t flags, void* context) {
  if (pretends("spy")) note("a", 0, name, 16); /* of provider tcp with IPv4 */
  return real_addresses.insert(table, name, count, address, flags, context);
}

static int pretended_control(struct fid* fid, int command, void* argument) {
  struct fid_ep* ep = (struct fid_ep*)fid;
  int result = control_endpoint(fid, command, argument);
  if (result || command != FI_ENABLE) return result;
  real_messages = message_calls = *ep->msg;
  message_calls.recv = pretended_recv;
  message_calls.send = pretended_send;
  message_calls.inject = pretended_inject;
  ep->msg = &message_calls;
  real_tagged = tagged_calls = *ep->tagged;
  tagged_calls.recv = pretended_trecv;
  tagged_calls.send = pretended_tsend;
  ep->tagged = &tagged_calls;
  real_names = name_calls = *ep->cm;
  name_calls.getname = pretended_name;
  ep->cm = &name_calls;
  if (!ep->rma) return 0;
  real_memory = memory_calls = *ep->rma;
  memory_calls.read = pretended_read;
  ep->rma = &memory_calls;
  return 0;
}

static int pretended_endpoint(struct fid_domain* domain, struct fi_info* info, struct fid_ep** ep,
                              void* context) {
  if (pretends("delivered")) info->tx_attr->op_flags |= FI_DELIVERY_COMPLETE;
  ask_for_what_there_is(info);
  int result = open_endpoint(domain, info, ep, context);
  if (result) return result;
  endpoint_calls = *(*ep)->fid.ops;
  control_endpoint = endpoint_calls.control;
  endpoint_calls.control = pretended_control;
  (*ep)->fid.ops = &endpoint_calls;
  return 0;
}

/* --- completions ------------------------------------------------------------------------------------------
 */

#define HELD 64
static struct held {
  struct fid_cq* queue;
  struct fi_cq_msg_entry entries[HELD];
  int count;
} held[64];
static struct fi_ops_cq queue_calls;
static ssize_t (*read_queue)(struct fid_cq*, void*, size_t);
static int (*open_queue)(struct fid_domain*, struct fi_cq_attr*, struct fid_cq**, void*);

static ssize_t pretended_read_queue(struct fid_cq* queue, void* entries, size_t most) {
  const ssize_t count = read_queue(queue, entries, most);
  for (ssize_t i = 0; i < count; ++i) end_read(((struct fi_cq_msg_entry*)entries)[i].op_context);
  return count;
}

/* Gives one at a time, any of those that have come; now and then none. */
static ssize_t shuffled_read(struct fid_cq* queue, void* entries, size_t most) {
  static unsigned seed = 1;
  struct held* own = held;
  pthread_mutex_lock(&lock);
  while (own->queue && own->queue != queue) ++own;
  own->queue = queue;
  pthread_mutex_unlock(&lock);
  if (own->count < HELD) {
    const ssize_t more = pretended_read_queue(queue, own->entries + own->count, (size_t)(HELD - own->count));
    if (more > 0) own->count += (int)more;
    if (more < 0 && more != -FI_EAGAIN) return more;
  }
  if (own->count == 0 || most == 0 || rand_r(&seed) % 3 == 0) return -FI_EAGAIN;
  const int chosen = (int)(rand_r(&seed) % (unsigned)own->count);
  *(struct fi_cq_msg_entry*)entries = own->entries[chosen];
  own->entries[chosen] = own->entries[--own->count];
  return 1;
}

static struct fi_ops queue_object_calls;
static int (*close_queue)(struct fid*);

static int close_shuffled(struct fid* fid) {
  for (struct held* own = held; own->queue; ++own) {
    if (&own->queue->fid == fid) own->count = 0;
  }
  return close_queue(fid);
}

static int pretended_queue(struct fid_domain* domain, struct fi_cq_attr* attr, struct fid_cq** queue,
                           void* context) {
  if (attr->wait_obj != FI_WAIT_NONE && (pretends("deaf") || pretends("shuffled"))) return -FI_ENOSYS;
  int result = open_queue(domain, attr, queue, context);
  if (result) return result;
  queue_calls = *(*queue)->ops;
  read_queue = queue_calls.read;
  queue_calls.read = pretends("shuffled") ? shuffled_read : pretended_read_queue;
  (*queue)->ops = &queue_calls;
  if (!pretends("shuffled")) return 0;
  queue_object_calls = *(*queue)->fid.ops;
  close_queue = queue_object_calls.close;
  queue_object_calls.close = close_shuffled;
  (*queue)->fid.ops = &queue_object_calls;
  return 0;
}

/* --- opening ----------------------------------------------------------------------------------------------
 */

static struct fi_ops_fabric fabric_calls;
static struct fi_ops_domain domain_calls;
static struct fi_ops_mr register_calls;
static int (*open_domain)(struct fid_fabric*, struct fi_info*, struct fid_domain**, void*);

static int (*open_table)(struct fid_domain*, struct fi_av_attr*, struct fid_av**, void*);

static int pretended_table(struct fid_domain* domain, struct fi_av_attr* attr, struct fid_av** table,
                           void* context) {
  int result = open_table(domain, attr, table, context);
  if (result || (*table)->ops == &address_calls) return result;
  address_calls = real_addresses = *(*table)->ops;
  address_calls.insert = pretended_insert;
  (*table)->ops = &address_calls;
  return 0;
}

static int pretended_domain(struct fid_fabric* fabric, struct fi_info* info, struct fid_domain** domain,
                            void* context) {
  if (pretends("unopenable")) return -FI_ENOMEM;
  if (pretends("cards") && strcmp(info->fabric_attr->prov_name, true_provider) == 0) {
    rename_it(&info->domain_attr->name, true_domain);
  }
  ask_for_what_there_is(info);
  int result = open_domain(fabric, info, domain, context);
  if (result) return result;
  domain_calls = *(*domain)->ops;
  open_queue = domain_calls.cq_open;
  domain_calls.cq_open = pretended_queue;
  open_endpoint = domain_calls.endpoint;
  domain_calls.endpoint = pretended_endpoint;
  open_table = domain_calls.av_open;
  domain_calls.av_open = pretended_table;
  (*domain)->ops = &domain_calls;
  register_calls = *(*domain)->mr;
  reg = register_calls.reg;
  register_calls.reg = pretended_reg;
  (*domain)->mr = &register_calls;
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
  fabric_calls.domain = pretended_domain;
  (*fabric)->ops = &fabric_calls;
  return 0;
}
