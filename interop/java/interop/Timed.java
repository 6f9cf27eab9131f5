package interop;

import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends messages that are to be delivered later and takes some of them back. Prints one line per message, then
 * {"done":count}. Only 5.x clients can do this; what 4.x clients lack is called by name, so that one source serves both.
 *
 * namesrv group topic way=setDelayTimeSec|setDelayTimeMs|setDeliverTimeMs
 * delays=ms,ms,...: one message for each [first] [recall=index,index: these are taken back at once]
 */
final class Timed {
    private static final int SEND_TIMEOUT_MS = 10_000;

    private Timed() {
    }

    static void run(Job job) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(job.args.text("group"));
        Clients.prepare(producer, job.args.text("namesrv"));
        producer.setInstanceName(job.instance("timed"));
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        try {
            producer.start();
            sendAll(producer, job);
        } finally {
            producer.shutdown();
        }
    }

    private static void sendAll(DefaultMQProducer producer, Job job) throws Exception {
        Args args = job.args;
        Set<String> recalled = Arrays.stream(args.text("recall", "").split(",")).collect(Collectors.toSet());
        int index = args.number("first", 0);
        String[] delays = args.text("delays").split(",");
        for (String delay : delays) {
            Map<String, Object> line = send(producer, args, index, Long.parseLong(delay));
            if (recalled.contains(String.valueOf(index))) {
                line.put("recalled", recall(producer, args.text("topic"), (String) line.get("recallHandle")));
            }
            job.line(line);
            index++;
        }
        job.line(Json.object("done", delays.length));
    }

    private static Map<String, Object> send(DefaultMQProducer producer, Args args, int index, long delayMs)
        throws Exception {
        Message message = new Message(args.text("topic"), "red", "key-" + index, Messages.body(index, 0));
        String way = args.text("way", "setDelayTimeMs");
        long value = switch (way) {
            case "setDelayTimeSec" -> delayMs / 1_000;
            case "setDeliverTimeMs" -> System.currentTimeMillis() + delayMs;
            default -> delayMs;
        };
        Message.class.getMethod(way, long.class).invoke(message, value);
        SendResult result = producer.send(message);
        return Json.object("index", index, "status", result.getSendStatus().name(), "msgId", result.getMsgId(),
            "recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(result));
    }

    /** The id of the message that was taken back, or why it was not. */
    private static Object recall(DefaultMQProducer producer, String topic, String handle) throws Exception {
        try {
            return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer, topic, handle);
        } catch (InvocationTargetException refused) {
            return "refused: " + refused.getCause();
        }
    }
}
