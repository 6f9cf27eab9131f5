package interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * One member of each of several groups, all reading one topic, until standard input closes. interop/member.py is its twin.
 * Prints {"ready":true,"clientId":...}, {"group":g,"assigned":[...]} whenever the queues of a group change, and one line
 * per message before it counts as consumed, so that whoever kills this process has heard of all that is committed.
 *
 * namesrv topic instance strategy.GROUP=... [orderly=true] [pauseMs: how long an orderly one takes over a message]
 */
public final class Members {
    private static final int TICK_MS = 50;
    private static final int POLL_NAMESRV_MS = 1_000;
    private static final int HEARTBEAT_MS = 1_000;
    private static final String RETRY_TOPIC_PREFIX = "%RETRY%";

    private final Args args;
    private final Map<String, DefaultMQPushConsumer> consumers = new LinkedHashMap<>();

    private Members(Args args) {
        this.args = args;
        args.under("strategy.").forEach((group, strategy) -> consumers.put(group, consumer(group, strategy)));
    }

    public static void main(String[] words) throws Exception {
        Program.failLoudly();
        Members members = new Members(new Args(words, 0));
        for (DefaultMQPushConsumer consumer : members.consumers.values()) {
            consumer.subscribe(members.args.text("topic"), "*");
            consumer.start();
        }
        String clientId = members.consumers.values().iterator().next().buildMQClientId();
        Json.line(Json.object("ready", true, "clientId", clientId));
        members.tellWhileOpen(Program.watchInput());
        members.consumers.values().forEach(DefaultMQPushConsumer::shutdown);
        Program.end();
    }

    private DefaultMQPushConsumer consumer(String group, String strategy) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        Clients.prepare(consumer, args.text("namesrv"));
        consumer.setClientIP("127.0.0.1");
        consumer.setInstanceName(args.text("instance"));
        consumer.setPollNameServerInterval(POLL_NAMESRV_MS);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(Strategies.of(strategy));
        long pauseNanos = TimeUnit.MILLISECONDS.toNanos(args.number("pauseMs", 0));
        if (args.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                tell(group, messages);
                LockSupport.parkNanos(pauseNanos);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                tell(group, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        return consumer;
    }

    private static void tell(String group, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            Json.line(Json.object(
                "group", group,
                "index", Messages.indexOf(message.getBody()),
                "queue", message.getBrokerName() + ":" + message.getQueueId(),
                "at", System.nanoTime()));
        }
        Json.flush();
    }

    private void tellWhileOpen(Thread input) throws InterruptedException {
        Map<String, List<String>> told = new LinkedHashMap<>();
        while (input.isAlive()) {
            consumers.forEach((group, consumer) -> {
                List<String> now = assignedQueues(consumer);
                if (!now.equals(told.put(group, now))) {
                    Json.line(Json.object("group", group, "assigned", now));
                }
            });
            Json.flush();
            input.join(TICK_MS);
        }
    }

    private static List<String> assignedQueues(DefaultMQPushConsumer consumer) {
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
