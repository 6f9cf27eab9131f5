package interop;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A lite pull consumer: polls until count messages came or idleMs passed without one, commits, and prints
 * one line per message, {"committed":{"broker:queue":offset}} and {"done":n}.
 *
 * namesrv group topic count [idleMs] [expression] [mode=subscribe|assign] [seek: start of every queue]
 */
public final class LitePull {
    private static final int POLL_MS = 500;
    private static final int HEARTBEAT_MS = 1_000;    // see Consume
    private static final int DEFAULT_IDLE_MS = 15_000;

    private final Args args;
    private final DefaultLitePullConsumer consumer;

    private LitePull(Args args) {
        this.args = args;
        consumer = new DefaultLitePullConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setInstanceName("lite-pull-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
    }

    public static void main(String[] words) throws Exception {
        Program.failLoudly();
        LitePull run = new LitePull(new Args(words, 0));
        boolean assign = run.args.text("mode", "subscribe").equals("assign");
        if (!assign) {
            run.consumer.subscribe(run.args.text("topic"), run.args.text("expression", "*"));
        }
        run.consumer.start();
        if (assign) {
            run.assign();
        }
        int received = run.poll();
        run.consumer.commitSync();
        run.printCommitted();
        Json.line(Json.object("done", received));
        Json.flush();
        run.consumer.shutdown();
        Program.end();
    }

    private void assign() throws Exception {
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(args.text("topic"));
        consumer.assign(queues);
        if (args.has("seek")) {
            for (MessageQueue queue : queues) {
                consumer.seek(queue, args.number64("seek"));
            }
        }
    }

    private int poll() {
        int received = 0;
        long idleMs = args.number("idleMs", DEFAULT_IDLE_MS);
        long lastAt = System.currentTimeMillis();
        while (received < args.number("count", 0) && System.currentTimeMillis() - lastAt < idleMs) {
            List<MessageExt> messages = consumer.poll(POLL_MS);
            for (MessageExt message : messages) {
                Json.line(Messages.full(message));
            }
            if (!messages.isEmpty()) {
                received += messages.size();
                lastAt = System.currentTimeMillis();
            }
        }
        return received;
    }

    private void printCommitted() throws Exception {
        Map<String, Object> offsets = new TreeMap<>();
        for (MessageQueue queue : new ArrayList<>(consumer.fetchMessageQueues(args.text("topic")))) {
            offsets.put(queue.getBrokerName() + ":" + queue.getQueueId(), consumer.committed(queue));
        }
        Json.line(Json.object("committed", offsets));
    }
}
