/* A broker made of ZeroMQ, as its guide describes one: XSUB and XPUB sockets with a proxy between.
 *
 * usage: zeromq_proxy ENDPOINT-OF-PUBLISHERS ENDPOINT-OF-SUBSCRIBERS
 *
 * Its queues are unbounded, because a publisher's messages are dropped where a queue is full.
 */
#include <zmq.h>

#include "../client.h"

static void *bound(void *context, int type, const char *endpoint)
{
    void *socket = zmq_socket(context, type);
    int unbounded = 0;
    check(socket != NULL, "zmq_socket");
    check(zmq_setsockopt(socket, ZMQ_SNDHWM, &unbounded, sizeof unbounded) == 0, "ZMQ_SNDHWM");
    check(zmq_setsockopt(socket, ZMQ_RCVHWM, &unbounded, sizeof unbounded) == 0, "ZMQ_RCVHWM");
    check(zmq_bind(socket, endpoint) == 0, endpoint);
    return socket;
}

int main(int count, char **arguments)
{
    begin_program();
    if (count != 3)
        die("usage: zeromq_proxy ENDPOINT-OF-PUBLISHERS ENDPOINT-OF-SUBSCRIBERS");
    void *context = zmq_ctx_new();
    check(context != NULL, "zmq_ctx_new");
    void *publishers = bound(context, ZMQ_XSUB, arguments[1]);
    void *subscribers = bound(context, ZMQ_XPUB, arguments[2]);
    zmq_proxy(publishers, subscribers, NULL);
    return 1; /* it returns only when something failed */
}
