package interop;

import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends count messages and prints one line per message, then {"done":count,"failed":n}.
 *
 * namesrv group topic count mode=sync|async|oneway|batch|orderly
 * [bodySize] [bodies=base64,base64] [tags=a,b: taken in turn] [keys=k-%d] [prop.NAME=VALUE, %d is the index]
 * [trace=true: and stay until it is asked to end] [compressType=ZLIB|LZ4|ZSTD] [flag] [delayLevel] [threads] [batchSize]
 * [first: index of the first message] [quiet=true: failures only]
 */
final class Produce {
    private static final String COMPRESS_TYPE = "rocketmq.message.compressType";
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final int MAX_IN_FLIGHT = 64;
    private static final int DRAIN_TIMEOUT_S = 60;
    private static final int SETTLE_TIMEOUT_S = 20;
    private static final int SETTLE_INTERVAL_MS = 50;

    private final Job job;
    private final Args args;
    private final DefaultMQProducer producer;
    private final int first;
    private final int count;
    private final boolean quiet;
    private final String[] bodies;
    private final AtomicInteger failed = new AtomicInteger();

    private Produce(Job job) {
        this.job = job;
        args = job.args;
        first = args.number("first", 0);
        bodies = args.has("bodies") ? args.text("bodies").split(",", -1) : null;
        count = bodies == null ? args.number("count", 1) : bodies.length;
        quiet = args.flag("quiet");
        producer = producer();
        Clients.prepare(producer, args.text("namesrv"));
        producer.setVipChannelEnabled(args.flag("vip"));
        producer.setUseTLS(args.flag("tls"));
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setInstanceName(job.instance("produce"));
    }

    static void run(Job job) throws Exception {
        Produce run = new Produce(job);
        try {
            run.producer.start();
            run.sendAll();
            job.line(Json.object("done", run.count, "failed", run.failed.get()));
            job.flush();
            if (job.args.flag("trace")) {
                job.awaitEnd();    // what is not traced yet is lost when the client ends
            }
        } finally {
            run.producer.shutdown();
        }
    }

    /** A producer asks for its compression when it is made, and 4.x has no other way to tell it. */
    private DefaultMQProducer producer() {
        synchronized (Produce.class) {
            System.setProperty(COMPRESS_TYPE, args.text("compressType", "ZLIB"));
            return new DefaultMQProducer(args.text("group"), Clients.hook(args), args.flag("trace"), null);
        }
    }

    private void sendAll() throws Exception {
        switch (args.text("mode", "sync")) {
            case "sync" -> sendByThreads(index -> report(index, producer.send(message(index))));
            case "orderly" -> sendByThreads(index -> report(index, producer.send(message(index),
                (queues, sent, key) -> queues.get((Integer) key % queues.size()), index)));
            case "oneway" -> {
                sendByThreads(index -> {
                    producer.sendOneway(message(index));
                    job.line(Json.object("index", index));
                });
                settleOneway();
            }
            case "async" -> sendAsync();
            case "batch" -> sendBatches();
            default -> throw new IllegalArgumentException("unknown mode " + args.text("mode"));
        }
    }

    private interface Send {
        void send(int index) throws Exception;
    }

    private void sendByThreads(Send send) throws InterruptedException {
        AtomicInteger next = new AtomicInteger(first);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < args.number("threads", 1); i++) {
            Thread thread = new Thread(() -> {
                for (int index = next.getAndIncrement(); index < first + count; index = next.getAndIncrement()) {
                    try {
                        send.send(index);
                    } catch (Exception e) {
                        fail(index, e);
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /**
     * A oneway send has no answer: an exchange on the same connection shows that the broker has read them all.
     * The first of them may just have made the topic, so its route is asked for until the broker has registered it.
     */
    private void settleOneway() throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SETTLE_TIMEOUT_S);
        while (true) {
            try {
                for (MessageQueue queue : producer.fetchPublishMessageQueues(args.text("topic"))) {
                    producer.maxOffset(queue);
                }
                return;
            } catch (MQClientException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(SETTLE_INTERVAL_MS);
            }
        }
    }

    private void sendAsync() throws Exception {
        Semaphore inFlight = new Semaphore(MAX_IN_FLIGHT);
        CountDownLatch pending = new CountDownLatch(count);
        for (int i = first; i < first + count; i++) {
            int index = i;
            inFlight.acquire();
            producer.send(message(index), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    report(index, result);
                    settled();
                }

                @Override
                public void onException(Throwable e) {
                    fail(index, e);
                    settled();
                }

                private void settled() {
                    inFlight.release();
                    pending.countDown();
                }
            });
        }
        if (!pending.await(DRAIN_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(pending.getCount() + " sends without an answer");
        }
    }

    /** One line per message: a batch's ids come joined by commas and its offsets follow each other. */
    private void sendBatches() throws Exception {
        int size = args.number("batchSize", count);
        for (int start = first; start < first + count; start += size) {
            List<Message> batch = new ArrayList<>();
            for (int index = start; index < Math.min(start + size, first + count); index++) {
                batch.add(message(index));
            }
            SendResult result = producer.send(batch);
            String[] ids = result.getMsgId().split(",");
            String[] offsetIds = result.getOffsetMsgId().split(",");
            for (int i = 0; i < batch.size(); i++) {
                Map<String, Object> line = line(start + i, result, result.getQueueOffset() + i);
                line.put("msgId", ids[i]);
                line.put("offsetMsgId", offsetIds.length == batch.size() ? offsetIds[i] : result.getOffsetMsgId());
                print(line);
            }
        }
    }

    private Message message(int index) {
        byte[] body = bodies == null
            ? Messages.body(index, args.number("bodySize", 0)) : Base64.getDecoder().decode(bodies[index - first]);
        Message message = new Message(args.text("topic"), body);
        if (args.has("tags")) {
            String[] tags = args.text("tags").split(",");
            message.setTags(tags[index % tags.length]);
        }
        if (args.has("keys")) {
            message.setKeys(args.text("keys").replace("%d", String.valueOf(index)));
        }
        args.under("prop.").forEach((name, value) ->
            message.putUserProperty(name, value.replace("%d", String.valueOf(index))));
        message.setFlag(args.number("flag", 0));
        if (args.has("delayLevel")) {
            message.setDelayTimeLevel(args.number("delayLevel", 0));
        }
        return message;
    }

    private void report(int index, SendResult result) {
        if (!quiet) {
            print(line(index, result, result.getQueueOffset()));
        }
    }

    private static Map<String, Object> line(int index, SendResult result, long queueOffset) {
        return Json.object(
            "index", index,
            "status", result.getSendStatus().name(),
            "msgId", result.getMsgId(),
            "offsetMsgId", result.getOffsetMsgId(),
            "brokerName", result.getMessageQueue().getBrokerName(),
            "queueId", result.getMessageQueue().getQueueId(),
            "queueOffset", queueOffset);
    }

    private void print(Map<String, Object> line) {
        if (!quiet) {
            job.line(line);
        }
    }

    private void fail(int index, Throwable e) {
        failed.incrementAndGet();
        String cause = e.getCause() == null ? "" : " because of " + e.getCause();
        job.line(Json.object("index", index, "status", "FAILED", "error", e + cause));
    }
}
