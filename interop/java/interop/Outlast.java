package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends until it is asked to end, whatever happens to the brokers. Each thread is a sender of its own: its messages are
 * "name:number:" and some filling, go to one queue, and the next one follows when this one was answered. A send that
 * failed is repeated. Prints {"ready":true}, a line for each send, failed or not, and {"done":threads}.
 *
 * namesrv group topic brokerName queues threads pollMs
 */
final class Outlast {
    private static final int SEND_TIMEOUT_MS = 3_000;
    private static final int PAUSE_MS = 20;
    private static final int[] FILLING = {0, 60, 300, 1_500};

    private final Job job;
    private final DefaultMQProducer producer;
    private final String topic;

    private Outlast(Job job) {
        this.job = job;
        topic = job.args.text("topic");
        producer = new DefaultMQProducer(job.args.text("group"));
        Clients.prepare(producer, job.args.text("namesrv"));
        producer.setPollNameServerInterval(job.args.number("pollMs", 0));
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setInstanceName(job.instance("outlast"));
    }

    static void run(Job job) throws Exception {
        Outlast run = new Outlast(job);
        try {
            run.producer.start();
            run.sendAll();
        } finally {
            run.producer.shutdown();
        }
    }

    private void sendAll() throws Exception {
        producer.fetchPublishMessageQueues(topic);    // a chosen queue is sent to where the route is known
        job.line(Json.object("ready", true));
        job.flush();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < job.args.number("threads", 1); i++) {
            String name = "java" + i;
            MessageQueue queue = new MessageQueue(
                topic, job.args.text("brokerName"), i % job.args.number("queues", 1));
            Thread thread = new Thread(() -> sendUntilTheEnd(name, queue), name);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        job.line(Json.object("done", threads.size()));
    }

    private void sendUntilTheEnd(String name, MessageQueue queue) {
        for (int number = 0; job.isOpen(); number++) {
            String body = name + ":" + number + ":" + "x".repeat(FILLING[number % FILLING.length]);
            Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
            for (int tries = 1; !isAnswered(name, number, tries, message, queue) && job.isOpen(); tries++) {
                pause();
            }
        }
    }

    private boolean isAnswered(String name, int number, int tries, Message message, MessageQueue queue) {
        long begunMs = System.currentTimeMillis();
        try {
            SendResult result = producer.send(message, queue);
            job.line(Json.object("sender", name, "number", number, "tries", tries, "begunMs", begunMs,
                "status", result.getSendStatus().name(), "queueId", result.getMessageQueue().getQueueId(),
                "queueOffset", result.getQueueOffset()));
            return true;
        } catch (Exception e) {
            job.line(Json.object("sender", name, "number", number, "tries", tries, "begunMs", begunMs,
                "status", "FAILED", "error", String.valueOf(e)));
            return false;
        } finally {
            job.flush();
        }
    }

    private static void pause() {
        try {
            TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
