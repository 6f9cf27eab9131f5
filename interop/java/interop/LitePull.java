package interop;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A lite pull consumer: prints {"ready":true}, polls until count messages came, idleMs passed without one or it
 * is asked to end, commits, and prints one line per message, {"committed":{"broker:queue":offset}} and {"done":n}. With
 * seek it goes back when count messages came, and polls as many once more.
 *
 * namesrv group topic count [idleMs] [expression] [mode=subscribe|assign] [seek: offset in every queue]
 */
final class LitePull {
    private static final int POLL_MS = 500;
    private static final int HEARTBEAT_MS = 1_000;    // see Consume
    private static final int DEFAULT_IDLE_MS = 40_000;    // 5.3.3 sometimes starts 20 s late

    private final Job job;
    private final Args args;
    private final DefaultLitePullConsumer consumer;

    private LitePull(Job job) {
        this.job = job;
        args = job.args;
        consumer = new DefaultLitePullConsumer(args.text("group"));
        Clients.prepare(consumer, args.text("namesrv"));
        consumer.setInstanceName(job.instance("lite-pull"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
    }

    static void run(Job job) throws Exception {
        LitePull run = new LitePull(job);
        try {
            run.pull();
        } finally {
            run.consumer.shutdown();
        }
    }

    private void pull() throws Exception {
        boolean assign = args.text("mode", "subscribe").equals("assign");
        if (!assign) {
            consumer.subscribe(args.text("topic"), args.text("expression", "*"));
        }
        consumer.start();
        job.line(Json.object("ready", true));
        job.flush();
        if (assign) {
            consumer.assign(queues());
        }
        int received = poll();
        if (args.has("seek")) {
            seek(args.number64("seek"));
            received += poll();
        }
        consumer.commitSync();
        printCommitted();
        job.line(Json.object("done", received));
        job.flush();
    }

    private Collection<MessageQueue> queues() throws Exception {
        return consumer.fetchMessageQueues(args.text("topic"));
    }

    /** Only with all messages polled: a pull that finds some while the client seeks may bring them twice. */
    private void seek(long offset) throws Exception {
        for (MessageQueue queue : queues()) {
            consumer.seek(queue, offset);
        }
    }

    private int poll() {
        int received = 0;
        long idleMs = args.number("idleMs", DEFAULT_IDLE_MS);
        long lastAt = System.currentTimeMillis();
        while (job.isOpen() && received < args.number("count", 0) && System.currentTimeMillis() - lastAt < idleMs) {
            List<MessageExt> messages = consumer.poll(POLL_MS);
            for (MessageExt message : messages) {
                job.line(Messages.full(message));
            }
            job.flush();
            if (!messages.isEmpty()) {
                received += messages.size();
                lastAt = System.currentTimeMillis();
            }
        }
        return received;
    }

    private void printCommitted() throws Exception {
        Map<String, Object> offsets = new TreeMap<>();
        for (MessageQueue queue : queues()) {
            offsets.put(queue.getBrokerName() + ":" + queue.getQueueId(), consumer.committed(queue));
        }
        job.line(Json.object("committed", offsets));
    }
}
