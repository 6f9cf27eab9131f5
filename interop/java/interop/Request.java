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
public final class Request {
    private static final int REQUEST_TIMEOUT_MS = 60_000;    // 5.3.3 sometimes starts 20 s late
    private static final int POLL_NAMESRV_MS = 1_000;
    private static final int HEARTBEAT_MS = 1_000;

    public static void main(String[] words) throws Exception {
        Program.failLoudly();
        Args args = new Args(words, 0);
        String topic = args.text("topic");
        DefaultMQProducer replier = producer(args, "replier");
        DefaultMQProducer requester = producer(args, "requester");
        DefaultMQPushConsumer consumer = consumer(args, replier);
        for (int index = 0; index < args.number("count", 1); index++) {
            String asked = "question-" + index;
            Message request = new Message(topic, asked.getBytes(StandardCharsets.UTF_8));
            String text = new String(answer(requester, request).getBody(), StandardCharsets.UTF_8);
            Json.line(Json.object("index", index, "asked", asked, "answer", text));
        }
        Json.line(Json.object("done", args.number("count", 1)));
        Json.flush();
        consumer.shutdown();
        requester.shutdown();
        replier.shutdown();
        Program.end();
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

    private static DefaultMQProducer producer(Args args, String role) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args.text("group") + "-" + role);
        Clients.prepare(producer, args.text("namesrv"));
        producer.setInstanceName(role + "-" + ProcessHandle.current().pid());
        producer.setPollNameServerInterval(POLL_NAMESRV_MS);
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(Args args, DefaultMQProducer replier) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.text("group"));
        Clients.prepare(consumer, args.text("namesrv"));
        consumer.setInstanceName("consumer-" + ProcessHandle.current().pid());
        consumer.setPollNameServerInterval(POLL_NAMESRV_MS);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args.text("topic"), "*");
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
