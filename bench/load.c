// The clients of the benchmark. One thread, epoll, HTTP/1.1 that keeps alive, one request at a time on a connection.
//
//   load -p PORT -b BODY_FILE [-x X_MOCK] [-c CONNECTIONS] [-t SECONDS] [-w WARM_UP_SECONDS] [-r RAMP_MS]
//        [-e STAMPS] [-n CHOICES] [-m TEXT] [-s]
//
// An answer is whole when its status is 200, it ends as its head says, holds STAMPS stamps (those of mock.c), equally
// many of each of CHOICES choices, TEXT on one of its lines, and with -s a [DONE]. After SECONDS no request begins, and
// those that run have 3 s to end. Prints one JSON object; rates leave the warm-up out, totals hold all. Times in us:
//   answer  sent → whole     first  sent → first stamp     event  stamped by the mock → read here
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "times.h"

#define MAX_CHOICES 16
enum state { HEAD, BODY, SIZE, DATA, DATA_END, TRAILER };

typedef struct {
  int fd, status, is_done, has_text, is_whole, is_closing;
  enum state state;
  int64_t start_ns, sent_ns;
  size_t written, left, line_len, head_len;
  long stamps, of_choice[MAX_CHOICES];
  char head[8192], line[8192];
} conn;

static series answers, firsts, events;
static int epoll, port, choices, is_stream, is_measured, connections = 1;
static long stamps = 1, begun, whole, bad, all_events, timed_answers, timed_events, reads;
static int64_t began_ns, warm_ns, end_ns;
static const char *text;
static char *request;
static size_t request_len;

static void read_line(conn *c, int64_t now) {
  char *at = c->line, *end = c->line + c->line_len;
  *end = 0;
  const char *index = strstr(c->line, "\"index\":");
  long choice = index ? strtol(index + 8, NULL, 10) : 0;
  while ((at = memchr(at, '@', end - at))) {
    if (end - at < 18 || at[17] != '@') { at++; continue; }
    if (is_measured && !c->stamps) note(&firsts, now - c->sent_ns);
    if (is_measured) note(&events, now - (int64_t)strtoull(at + 1, NULL, 16));
    c->stamps++, all_events++, timed_events += is_measured;
    if (choice >= 0 && choice < MAX_CHOICES) c->of_choice[choice]++;
    at += 18;
  }
  if (!strncmp(c->line, "data: [DONE]", 12)) c->is_done = 1;
  if (text && strstr(c->line, text)) c->has_text = 1;
  c->line_len = 0;
}

static void read_payload(conn *c, const char *data, size_t size, int64_t now) {
  while (size) {
    const char *nl = memchr(data, '\n', size);
    size_t part = nl ? (size_t)(nl - data) : size, room = sizeof c->line - 1 - c->line_len;
    memcpy(c->line + c->line_len, data, part < room ? part : room);
    c->line_len += part < room ? part : room;
    if (nl) read_line(c, now), part++;
    data += part, size -= part;
  }
}

static void read_head(conn *c) {
  c->head[c->head_len] = 0;
  c->status = c->head_len > 12 ? atoi(c->head + 9) : 0;
  const char *length = strcasestr(c->head, "\r\ncontent-length:");
  c->left = length ? strtoul(length + 17, NULL, 10) : 0;
  c->state = strcasestr(c->head, "\r\ntransfer-encoding: chunked") ? SIZE : BODY;
  c->is_whole = c->state == BODY && !c->left;
  c->is_closing = strcasestr(c->head, "\r\nconnection: close") != NULL;
  c->head_len = 0;
}

// One byte of the framing.
static void read_frame(conn *c, char byte) {
  if (c->head_len < sizeof c->head - 1) c->head[c->head_len++] = byte;
  if (c->state == HEAD && byte == '\n' && c->head_len > 3 && !memcmp(c->head + c->head_len - 4, "\r\n\r\n", 4)) {
    read_head(c);
  } else if (c->state == SIZE && byte == '\n') {
    c->left = strtoul(c->head, NULL, 16);
    c->state = c->left ? DATA : TRAILER, c->head_len = 0;
  } else if (c->state == DATA_END && byte == '\n') {
    c->state = SIZE, c->head_len = 0;
  } else if (c->state == TRAILER && byte == '\n') {
    c->is_whole = c->head_len == 2, c->head_len = 0;
  }
}

static void feed(conn *c, const char *data, size_t size, int64_t now) {
  while (size && !c->is_whole) {
    if (c->state != BODY && c->state != DATA) {
      read_frame(c, *data);
      data++, size--;
      continue;
    }
    size_t part = size < c->left ? size : c->left;
    read_payload(c, data, part, now);
    data += part, size -= part, c->left -= part;
    if (!c->left && c->state == BODY) c->is_whole = 1;
    if (!c->left) c->state = DATA_END;
  }
}

static void hang_up(conn *c) {
  close(c->fd);
  c->fd = -1;
}

static void push(conn *c) {
  while (c->written < request_len) {
    ssize_t sent = send(c->fd, request + c->written, request_len - c->written, MSG_NOSIGNAL);
    if (sent < 0) return;  // edge triggered: the socket says when there is room, or that it is gone
    c->written += sent;
  }
}

static void dial(conn *c) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int yes = 1;
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
  connect(c->fd, (struct sockaddr *)&a, sizeof a);
}

static void begin(conn *c) {
  int fd = c->fd;
  int64_t start_ns = c->start_ns;
  memset(c, 0, offsetof(conn, head));
  c->fd = fd, c->start_ns = start_ns, c->sent_ns = now_ns(), begun++;
  if (fd < 0) dial(c);
  push(c);
}

static void judge(conn *c, int64_t now) {
  if (c->line_len) read_line(c, now);
  int is_good = c->is_whole && c->status == 200 && c->stamps == stamps && (!is_stream || c->is_done) && (!text || c->has_text);
  for (int i = 0; i < choices; i++) is_good &= c->of_choice[i] == stamps / choices;
  is_good ? whole++ : bad++;
  if (!is_good && bad == 1) fprintf(stderr, "status %d, %ld of %ld stamps, %s%s\n", c->status, c->stamps, stamps, c->is_whole ? "whole" : "cut",
                                   text && !c->has_text ? ", without the text asked for" : "");
  if (!is_good) return;
  if (is_measured) note(&answers, now - c->sent_ns);
  timed_answers += is_measured;
}

static void receive(conn *c) {
  static char data[1 << 16];
  while (c->fd >= 0) {
    ssize_t got = recv(c->fd, data, sizeof data, 0);
    if (got < 0 && errno == EAGAIN) return;
    int64_t now = now_ns();
    reads++;
    is_measured = now >= warm_ns && now < end_ns;
    if (got > 0) feed(c, data, got, now);
    if (got > 0 && !c->is_whole) continue;
    judge(c, now);
    if (got <= 0 || c->is_closing) hang_up(c);
    if (now < end_ns && bad < 1000) begin(c);
    else if (c->fd >= 0) hang_up(c);
  }
}

static void make_request(const char *file, const char *mock) {
  FILE *f = fopen(file, "rb");
  if (!f) { perror(file); exit(2); }
  fseek(f, 0, SEEK_END);
  size_t size = ftell(f);
  rewind(f);
  request = malloc(size + 512);
  int head = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nUser-Agent: bench\r\n"
                     "Authorization: Bearer bench\r\nContent-Type: application/json\r\nX-Mock: %.64s\r\nContent-Length: %zu\r\n\r\n",
                     port, mock, size);
  request_len = head + fread(request + head, 1, size, f);
  fclose(f);
}

static void print_all(int64_t measured_ns) {
  double s = measured_ns / 1e9;
  printf("{\"begun\": %ld, \"whole\": %ld, \"bad\": %ld, \"events\": %ld, \"answers_a_s\": %.1f, \"events_a_s\": %.1f, \"events_a_read\": %.2f",
         begun, whole, begun - whole, all_events, timed_answers / s, timed_events / s, reads ? (double)all_events / reads : 0);
  print_series("answer", &answers);
  print_series("first", &firsts);
  print_series("event", &events);
  printf("}\n");
}

int main(int count, char **words) {
  const char *file = "", *mock = "1 0";
  double seconds = 1, warm_s = 0, ramp_ms = 0;
  for (int option; (option = getopt(count, words, "p:b:x:c:t:w:r:e:n:m:s")) != -1;) switch (option) {
    case 'p': port = atoi(optarg); break;
    case 'b': file = optarg; break;
    case 'x': mock = optarg; break;
    case 'c': connections = atoi(optarg); break;
    case 't': seconds = atof(optarg); break;
    case 'w': warm_s = atof(optarg); break;
    case 'r': ramp_ms = atof(optarg); break;
    case 'e': stamps = atol(optarg); break;
    case 'n': choices = atoi(optarg); break;
    case 'm': text = optarg; break;
    case 's': is_stream = 1; break;
    default: return 2;
  }
  make_request(file, mock);
  if (choices > MAX_CHOICES) return 2;
  epoll = epoll_create1(0);
  conn *all = calloc(connections, sizeof *all);
  began_ns = now_ns(), warm_ns = began_ns + warm_s * 1e9, end_ns = began_ns + seconds * 1e9;
  for (int i = 0; i < connections; i++) all[i].fd = -1, all[i].start_ns = began_ns + ramp_ms * 1e6 * i / connections;
  int started = 0;
  for (struct epoll_event found[256];;) {
    int64_t now = now_ns();
    while (started < connections && all[started].start_ns <= now) begin(&all[started++]);
    if (now > end_ns + 3000000000LL || (now >= end_ns && whole + bad >= begun) || bad >= 1000) break;
    int n = epoll_wait(epoll, found, 256, 1);
    for (int i = 0; i < n; i++) {
      conn *c = found[i].data.ptr;
      if (c->fd < 0) continue;
      push(c);
      receive(c);
    }
  }
  print_all(end_ns - warm_ns);
  return 0;
}
