package interop;

import org.apache.rocketmq.client.ClientConfig;

/** What all our clients have in common. */
final class Clients {
    // By default 3 s, which a JVM that just started on a busy machine may need for its first answer; a 5.x consumer
    // whose first question has no answer by then does not start.
    private static final int API_TIMEOUT_MS = 20_000;

    private Clients() {
    }

    static void prepare(ClientConfig client, String namesrv) {
        client.setNamesrvAddr(namesrv);
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
    }
}
