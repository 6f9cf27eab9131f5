package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Measures Apache's client under load and prints {"done":count,"ms":n}: the milliseconds from the first request to the
 * last answer, without the start of the client. Any refusal ends it with an error.
 *
 * namesrv group topic count mode=send|batch|consume [threads] [bodySize] [batchSize]
 */
final class Measure {
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final int CONSUME_TIMEOUT_S = 120;
    private static final int PULLED = 32;

    private Measure() {
    }

    static void run(Job job) throws Exception {
        Args args = job.args;
        long nanos = switch (args.text("mode")) {
            case "send", "batch" -> produce(job);
            case "consume" -> consume(job);
            default -> throw new IllegalArgumentException("unknown mode " + args.text("mode"));
        };
        job.line(Json.object("done", args.number("count", 0), "ms", nanos / 1e6));
        job.flush();
    }

    private static long produce(Job job) throws Exception {
        Args args = job.args;
        DefaultMQProducer producer = new DefaultMQProducer(args.text("group"));
        Clients.prepare(producer, args.text("namesrv"));
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setInstanceName(job.instance("measure"));
        producer.start();
        try {
            send(producer, args, 1);    // the route and the connection belong to the start
            AtomicInteger left = new AtomicInteger(args.number("count", 0));
            int step = args.text("mode").equals("batch") ? args.number("batchSize", PULLED) : 1;
            List<Throwable> failures = new ArrayList<>();
            List<Thread> threads = new ArrayList<>();
            long began = System.nanoTime();
            for (int i = 0; i < args.number("threads", 1); i++) {
                Thread thread = new Thread(() -> {
                    try {
                        while (left.getAndAdd(-step) > 0) {
                            send(producer, args, step);
                        }
                    } catch (Exception e) {
                        synchronized (failures) {
                            failures.add(e);
                        }
                    }
                });
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) {
                thread.join();
            }
            long nanos = System.nanoTime() - began;
            if (!failures.isEmpty()) {
                throw new IllegalStateException(failures.size() + " threads failed", failures.get(0));
            }
            return nanos;
        } finally {
            producer.shutdown();
        }
    }

    private static void send(DefaultMQProducer producer, Args args, int step) throws Exception {
        SendStatus status;
        if (step == 1) {
            status = producer.send(message(args)).getSendStatus();
        } else {
            List<Message> batch = new ArrayList<>(step);
            for (int i = 0; i < step; i++) {
                batch.add(message(args));
            }
            status = producer.send(batch).getSendStatus();
        }
        if (status != SendStatus.SEND_OK) {
            throw new IllegalStateException("the broker answered " + status);
        }
    }

    private static Message message(Args args) {
        return new Message(args.text("topic"), "TagA", new byte[args.number("bodySize", 128)]);
    }

    private static long consume(Job job) throws Exception {
        Args args = job.args;
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.text("group"));
        Clients.prepare(consumer, args.text("namesrv"));
        consumer.setVipChannelEnabled(false);
        consumer.setInstanceName(job.instance("measure"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(PULLED);
        consumer.subscribe(args.text("topic"), "*");
        AtomicInteger left = new AtomicInteger(args.number("count", 0));
        CountDownLatch done = new CountDownLatch(1);
        long[] began = {0};
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (began) {
                if (began[0] == 0) {
                    began[0] = System.nanoTime();    // the first rebalance belongs to the start
                }
            }
            if (left.addAndGet(-messages.size()) <= 0) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            if (!done.await(CONSUME_TIMEOUT_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException(left.get() + " messages have not come in " + CONSUME_TIMEOUT_S + " s");
            }
            return System.nanoTime() - began[0];
        } finally {
            consumer.shutdown();
        }
    }
}
