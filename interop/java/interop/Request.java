package interop;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Request and reply: one producer asks count questions, a consumer of the same program answers each with
 * "re: " and the question. Prints one line {"index","asked","answer"} per answer, then {"done":count}.
 *
 * namesrv group topic count
 */
final class Request {
    private static final int REQUEST_TIMEOUT_MS = 60_000;    // 5.3.3 sometimes starts 20 s late
    private static final int POLL_NAMESRV_MS = 1_000;
    private static final int HEARTBEAT_MS = 1_000;

    static void run(Job job) throws Exception {
        Args args = job.args;
        String topic = args.text("topic");
        DefaultMQProducer replier = producer(job, "replier");
        DefaultMQProducer requester = producer(job, "requester");
        DefaultMQPushConsumer consumer = consumer(job, replier);
        try {
            for (int index = 0; index < args.number("count", 1); index++) {
                String asked = "question-" + index;
                Message request = new Message(topic, asked.getBytes(StandardCharsets.UTF_8));
                String text = new String(answer(requester, request).getBody(), StandardCharsets.UTF_8);
                job.line(Json.object("index", index, "asked", asked, "answer", text));
            }
            job.line(Json.object("done", args.number("count", 1)));
            job.flush();
        } finally {
            consumer.shutdown();
            requester.shutdown();
            replier.shutdown();
        }
    }

    /**
     * By callback, for the blocking request() of 5.3.3 stops waiting as soon as the request itself is sent. Both
     * generations call back with null then, and once more with the answer.
     */
    private static Message answer(DefaultMQProducer requester, Message request) throws Exception {
        CompletableFuture<Message> answer = new CompletableFuture<>();
        requester.request(request, new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) {
                    answer.complete(message);
                }
            }

            @Override
            public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        }, REQUEST_TIMEOUT_MS);
        return answer.get(REQUEST_TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    private static DefaultMQProducer producer(Job job, String role) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(job.args.text("group") + "-" + role);
        Clients.prepare(producer, job.args.text("namesrv"));
        producer.setInstanceName(job.instance(role));
        producer.setPollNameServerInterval(POLL_NAMESRV_MS);
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(Job job, DefaultMQProducer replier) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.args.text("group"));
        Clients.prepare(consumer, job.args.text("namesrv"));
        consumer.setInstanceName(job.instance("consumer"));
        consumer.setPollNameServerInterval(POLL_NAMESRV_MS);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(job.args.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> reply(messages, replier));
        consumer.start();
        return consumer;
    }

    private static ConsumeConcurrentlyStatus reply(List<MessageExt> messages, DefaultMQProducer replier) {
        for (MessageExt message : messages) {
            if (message.getProperty("CORRELATION_ID") == null) {
                continue;    // whoever sent it expects no answer
            }
            String asked = new String(message.getBody(), StandardCharsets.UTF_8);
            try {
                replier.send(MessageUtil.createReplyMessage(message, ("re: " + asked).getBytes(StandardCharsets.UTF_8)));
            } catch (Exception error) {
                throw new IllegalStateException("the reply to " + asked + " failed", error);
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }
}
