package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A push consumer. Prints {"ready":true}, {"assigned":[...]} whenever its queues change, one line per message,
 * and {"done":n} at the end: after count messages, after idleMs without one, or when it is asked to end.
 *
 * namesrv group topic [expression | sql] [trace=true] [count] [idleMs] [from=first|last|timestamp] [consumeTimestamp: yyyyMMddHHmmss, local time]
 * [model=CLUSTERING|BROADCASTING]
 * [orderly=true] [compact=true: index, queue and offset only, the body checked here]
 * [fail=true: refuse every message] [maxReconsumeTimes] [retryLevel: the delay level of a refused message]
 * [popInvisibleMs: let the broker say what to read and how; 5.x only] [hang=true: never finish with a message]
 * Unless it hangs, it is done with every message it has printed when it ends.
 */
final class Consume {
    private static final int TICK_MS = 50;
    private static final int POLL_NAMESRV_MS = 1_000;
    // 5.x announces a changed subscription after its first rebalance, one second after the start: just when the first
    // periodic heartbeat holds the lock. Whoever loses waits for the next one, by default 30 s later.
    private static final int HEARTBEAT_MS = 1_000;
    private static final int PERSIST_OFFSET_MS = 500;
    // By default a consumer that is shut down forgets what its listener has just been given.
    private static final int FINISH_MS = 20_000;
    private static final String RETRY_TOPIC_PREFIX = "%RETRY%";

    private final Job job;
    private final Args args;
    private final DefaultMQPushConsumer consumer;
    private final AtomicInteger received = new AtomicInteger();
    private final AtomicLong lastAt = new AtomicLong(System.nanoTime());

    private Consume(Job job) {
        this.job = job;
        args = job.args;
        consumer = new DefaultMQPushConsumer(args.text("group"), Clients.hook(args), new AllocateMessageQueueAveragely(),
            args.flag("trace"), null);
        Clients.prepare(consumer, args.text("namesrv"));
        consumer.setVipChannelEnabled(args.flag("vip"));
        consumer.setUseTLS(args.flag("tls"));
        consumer.setInstanceName(job.instance("consume"));
        consumer.setPollNameServerInterval(POLL_NAMESRV_MS);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setPersistConsumerOffsetInterval(PERSIST_OFFSET_MS);
        consumer.setAwaitTerminationMillisWhenShutdown(args.flag("hang") ? 0 : FINISH_MS);
        consumer.setConsumeFromWhere(switch (args.text("from", "first")) {
            case "first" -> ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
            case "last" -> ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET;
            default -> ConsumeFromWhere.CONSUME_FROM_TIMESTAMP;
        });
        if (args.has("consumeTimestamp")) {
            consumer.setConsumeTimestamp(args.text("consumeTimestamp"));
        }
        consumer.setMaxReconsumeTimes(args.number("maxReconsumeTimes", consumer.getMaxReconsumeTimes()));
        if (args.has("popInvisibleMs")) {
            letTheBrokerAssign();
        }
        // MessageModel moved between 4.x and 5.x: reach it without an import, so one source fits both.
        consumer.setMessageModel(Enum.valueOf(
            consumer.getMessageModel().getDeclaringClass(), args.text("model", "CLUSTERING")));
    }

    static void run(Job job) throws Exception {
        Consume run = new Consume(job);
        run.subscribe();
        run.listen();
        try {
            run.consumer.start();
            job.line(Json.object("ready", true));
            run.waitForTheEnd();
        } finally {
            run.consumer.shutdown();
        }
        job.line(Json.object("done", run.received.get()));
    }

    private void subscribe() throws Exception {
        if (args.has("sql")) {
            consumer.subscribe(args.text("topic"), MessageSelector.bySql(args.text("sql")));
        } else {
            consumer.subscribe(args.text("topic"), args.text("expression", "*"));
        }
    }

    /** 4.x has none of this: reach it without naming it, so one source fits both. */
    private void letTheBrokerAssign() {
        try {
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            consumer.getClass().getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, args.number64("popInvisibleMs"));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    private void listen() {
        if (args.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                print(messages);
                return args.flag("fail")
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                print(messages);
                if (args.flag("hang")) {
                    hang();
                }
                context.setDelayLevelWhenNextConsume(args.number("retryLevel", 0));
                return args.flag("fail")
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
    }

    /** Not even an interrupt ends it: a listener that returned would finish with its message. */
    private static void hang() {
        while (true) {
            LockSupport.park();
            Thread.interrupted();    // or it could not park again
        }
    }

    private void print(List<MessageExt> messages) {
        boolean compact = args.flag("compact");
        for (MessageExt message : messages) {
            job.line(compact ? Messages.compact(message) : Messages.full(message));
        }
        received.addAndGet(messages.size());
        lastAt.set(System.nanoTime());
    }

    private void waitForTheEnd() throws InterruptedException {
        List<String> assigned = new ArrayList<>();
        while (job.isOpen() && !ended()) {
            List<String> now = assignedQueues();
            if (!now.equals(assigned)) {
                job.line(Json.object("assigned", now));
                assigned = now;
            }
            job.flush();
            Thread.sleep(TICK_MS);
        }
    }

    private boolean ended() {
        long idleMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - lastAt.get());
        return args.has("count") && received.get() >= args.number("count", 0)
            || args.has("idleMs") && idleMs > args.number("idleMs", 0);
    }

    /** "broker:queue" of every queue this consumer holds, the group's retry topic apart. */
    private List<String> assignedQueues() {
        TreeSet<String> names = new TreeSet<>();
        for (MessageQueue queue
            : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (!queue.getTopic().startsWith(RETRY_TOPIC_PREFIX)) {
                names.add(queue.getBrokerName() + ":" + queue.getQueueId());
            }
        }
        return new ArrayList<>(names);
    }
}
