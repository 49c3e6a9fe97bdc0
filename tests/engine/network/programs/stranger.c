/* Sends to an endpoint of the provider tcp what it is told to.

   stranger NAME reads lines "m BYTES" (a message) and "t TAG BYTES" (a tagged one), all in hexadecimal, and
   says "ready" first, then "sent" or what went wrong after each. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void must(const char* what, int result) {
  if (result >= 0) return;
  printf("%s: %s\n", what, fi_strerror(-result));
  exit(1);
}

static size_t bytes_of(const char* text, unsigned char* bytes) {
  size_t count = 0;
  for (unsigned byte; sscanf(text + 2 * count, "%2x", &byte) == 1; ++count)
    bytes[count] = (unsigned char)byte;
  return count;
}

int main(int count, char** arguments) {
  struct fi_info *hints = fi_allocinfo(), *info;
  hints->caps = FI_MSG | FI_TAGGED;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = strdup("tcp");
  must("fi_getinfo", fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info));
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_ep* end;
  struct fid_av* table;
  struct fid_cq* queue;
  struct fi_av_attr of_table = {.type = FI_AV_UNSPEC};
  struct fi_cq_attr of_queue = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
  must("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
  must("fi_domain", fi_domain(fabric, info, &domain, NULL));
  must("fi_av_open", fi_av_open(domain, &of_table, &table, NULL));
  must("fi_cq_open", fi_cq_open(domain, &of_queue, &queue, NULL));
  must("fi_endpoint", fi_endpoint(domain, info, &end, NULL));
  must("fi_ep_bind", fi_ep_bind(end, &table->fid, 0));
  must("fi_ep_bind", fi_ep_bind(end, &queue->fid, FI_TRANSMIT | FI_RECV));
  must("fi_enable", fi_enable(end));
  unsigned char name[512] = {0};
  fi_addr_t there;
  bytes_of(arguments[count - 1], name);
  if (fi_av_insert(table, name, 1, &there, 0, NULL) != 1) must("fi_av_insert", -FI_EINVAL);
  printf("ready\n");
  fflush(stdout);

  static char line[1 << 20];
  static unsigned char bytes[1 << 19];
  struct fi_context2 context;
  while (fgets(line, sizeof line, stdin)) {
    char* rest = line + 2;
    const uint64_t tag = line[0] == 't' ? strtoull(rest, &rest, 16) : 0;
    rest += strspn(rest, " ");
    const size_t length = bytes_of(rest, bytes);
    const time_t until = time(NULL) + 10;
    ssize_t result = -FI_EAGAIN;
    struct fi_cq_msg_entry entry;
    while (result == -FI_EAGAIN && time(NULL) < until) {
      result = line[0] == 't' ? fi_tsend(end, bytes, length, NULL, there, tag, &context)
                              : fi_send(end, bytes, length, NULL, there, &context);
      fi_cq_read(queue, NULL, 0);
    }
    while (result == 0 && time(NULL) < until) {
      const ssize_t done = fi_cq_read(queue, &entry, 1);
      if (done == 1) break;
      if (done != -FI_EAGAIN) result = done;
    }
    printf("%s\n", result == 0 ? "sent" : fi_strerror((int)-result));
    fflush(stdout);
  }
  return 0;
}
