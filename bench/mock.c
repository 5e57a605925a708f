// The backend of the benchmark: `mock PORT`. One thread, epoll, HTTP/1.1 that keeps alive, on 127.0.0.1 only.
//
// A POST whose body asks for a stream gets events, any other one gets JSON. `X-Mock: EVENTS GAP_US` says how many events
// with content, and how long to wait before each; no gap is a flood. Each content is stamped with the time at which it
// was written: @<16 hex digits, ns of CLOCK_MONOTONIC>@. More than one streamed choice is refused, as some backends do,
// and the JSON's system_fingerprint says whether return_meta_info was asked for.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "times.h"

#define EVENTS_A_WRITE 16
#define ROLE "{\"role\":\"assistant\",\"content\":\"\"}"

typedef struct conn {
  int fd, is_waiting, is_dead;
  char *in, *out;
  size_t in_len, in_room, out_len, out_room, out_sent;
  long left, gap_ns;
  int64_t due_ns;
  struct conn *next, *before;  // in the queue of streams, the first due first
} conn;

static conn queue = {.next = &queue, .before = &queue};
static int epoll;

static void leave_queue(conn *c) {
  if (!c->is_waiting) return;
  c->before->next = c->next, c->next->before = c->before, c->is_waiting = 0;
}

static void enter_queue(conn *c, int64_t due_ns) {
  conn *after = queue.before;
  while (after != &queue && after->due_ns > due_ns) after = after->before;
  c->before = after, c->next = after->next, after->next->before = c, after->next = c;
  c->due_ns = due_ns, c->is_waiting = 1;
}

static void put(conn *c, const char *data, size_t size) {
  while (c->out_len + size > c->out_room) c->out = realloc(c->out, c->out_room = c->out_room * 2 + 4096);
  memcpy(c->out + c->out_len, data, size);
  c->out_len += size;
}

static void put_chunk(conn *c, const char *data) {
  char size[24];
  put(c, size, sprintf(size, "%zx\r\n", strlen(data)));
  put(c, data, strlen(data));
  put(c, "\r\n", 2);
}

static void put_event(conn *c, const char *delta, const char *finish) {
  char text[512];
  sprintf(text, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\","
                "\"choices\":[{\"index\":0,\"delta\":%s,\"logprobs\":null,\"finish_reason\":%s}]}\n\n", delta, finish);
  put_chunk(c, text);
}

static void put_answer(conn *c, const char *status, const char *body) {
  char head[256];
  put(c, head, sprintf(head, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", status, strlen(body)));
  put(c, body, strlen(body));
}

static void flush(conn *c) {
  while (c->out_sent < c->out_len) {
    ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_len - c->out_sent, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) c->is_dead = 1;
    if (sent < 0) return;  // edge triggered: the socket says when there is room
    c->out_sent += sent;
  }
  c->out_len = c->out_sent = 0;
}

// Write what of a stream is due.
static void step(conn *c) {
  char delta[64];
  for (int i = c->gap_ns ? 1 : EVENTS_A_WRITE; i && c->left; i--, c->left--) {
    sprintf(delta, "{\"content\":\" word @%016llx@\"}", (unsigned long long)now_ns());
    put_event(c, delta, "null");
  }
  if (!c->left) {
    put_event(c, "{}", "\"stop\"");
    put_chunk(c, "data: [DONE]\n\n");
    put(c, "0\r\n\r\n", 5);
  }
  flush(c);
  if (c->left && !c->out_len) enter_queue(c, c->gap_ns ? c->due_ns + c->gap_ns : now_ns());
}

// The first letter of a field's value, 0 where the field is not there.
static char field(const char *body, size_t size, const char *name) {
  const char *at = memmem(body, size, name, strlen(name)), *end = body + size;
  if (!at) return 0;
  for (at += strlen(name); at < end && (*at == ' ' || *at == ':'); at++) {}
  return at < end ? *at : 0;
}

static void answer(conn *c, const char *head, const char *body, size_t size) {
  char text[1024];
  const char *said = strcasestr(head, "\r\nx-mock:");
  long events = 1, gap_us = 0;
  if (said) sscanf(said + 9, "%ld %ld", &events, &gap_us);
  if (strncmp(head, "POST", 4)) {
    put_answer(c, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\"}]}");
  } else if (field(body, size, "\"stream\"") != 't') {
    int asks = field(body, size, "\"return_meta_info\"") == 't';
    snprintf(text, sizeof text, "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"mock\","
             "\"system_fingerprint\":\"meta_info=%s\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
             "\"%0400d @%016llx@\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":200,"
             "\"total_tokens\":264,\"completion_tokens\":64}}", asks ? "yes" : "no", 0, (unsigned long long)now_ns());
    put_answer(c, "200 OK", text);
  } else if (field(body, size, "\"n\"") > '1') {
    put_answer(c, "400 Bad Request", "{\"error\":{\"message\":\"n > 1 can't be streamed\",\"type\":\"invalid_request_error\"}}");
  } else {
    static const char stream[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    put(c, stream, sizeof stream - 1);
    put_event(c, ROLE, "null");
    c->left = events, c->gap_ns = gap_us * 1000;
    if (c->gap_ns) enter_queue(c, now_ns() + c->gap_ns);
    else step(c);
  }
  flush(c);
}

// Answer the requests that are whole, one after another.
static void serve(conn *c) {
  while (!c->left && !c->out_len && c->in_len) {
    char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!end) return;
    *end = 0;
    const char *said = strcasestr(c->in, "\r\ncontent-length:");
    size_t head_size = end + 4 - c->in, size = said ? strtoul(said + 17, NULL, 10) : 0;
    int is_whole = c->in_len >= head_size + size;
    if (is_whole) answer(c, c->in, c->in + head_size, size);
    *end = '\r';
    if (!is_whole) return;
    c->in_len -= head_size + size;
    memmove(c->in, c->in + head_size + size, c->in_len);
  }
}

static void receive(conn *c) {
  for (;;) {
    if (c->in_len == c->in_room) c->in = realloc(c->in, c->in_room = c->in_room * 2 + 4096);
    ssize_t got = recv(c->fd, c->in + c->in_len, c->in_room - c->in_len, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) c->is_dead = 1;
    if (got <= 0) break;
    c->in_len += got;
  }
  if (!c->is_dead) serve(c);
}

static void drop(conn *c) {
  leave_queue(c);
  close(c->fd);
  free(c->in), free(c->out), free(c);
}

static void take_in(int listener) {
  int fd, yes = 1;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    conn *c = calloc(1, sizeof *c);
    c->fd = fd;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
  }
}

static int listen_on(int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096)) { perror("mock"); exit(1); }
  return fd;
}

int main(int count, char **words) {
  if (count != 2) { fprintf(stderr, "usage: mock PORT\n"); return 2; }
  int listener = listen_on(atoi(words[1]));
  struct epoll_event found[256], e = {.events = EPOLLIN, .data.ptr = NULL};
  epoll = epoll_create1(0);
  epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
  for (;;) {
    struct pollfd wait = {.fd = epoll, .events = POLLIN};
    int64_t left_ns = queue.next == &queue ? 1000000000 : queue.next->due_ns - now_ns();
    struct timespec t = {.tv_sec = 0, .tv_nsec = left_ns < 0 ? 0 : left_ns > 999999999 ? 999999999 : left_ns};
    ppoll(&wait, 1, &t, NULL);
    int n = epoll_wait(epoll, found, 256, 0);
    for (int i = 0; i < n; i++) {
      conn *c = found[i].data.ptr;
      if (!c) { take_in(listener); continue; }
      int was_full = c->out_len > 0;
      if (was_full) flush(c);
      if (was_full && !c->out_len && c->left && !c->is_waiting) enter_queue(c, now_ns());
      receive(c);
      if (c->is_dead) drop(c);
    }
    int64_t at_ns = now_ns();
    for (int turns = 128; turns && queue.next != &queue && queue.next->due_ns <= at_ns; turns--) {
      conn *c = queue.next;
      leave_queue(c);
      step(c);
      if (!c->left && !c->is_dead) serve(c);
      if (c->is_dead) drop(c);
    }
  }
}
