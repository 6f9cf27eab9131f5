package interop;

import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;

/** The body every language can recompute, and a received message as JSON. */
final class Messages {
    private static final String BODY_PREFIX = "body-";

    private Messages() {
    }

    /** "body-{index}-" once, or repeated and cut to size bytes when size is positive. */
    static byte[] body(int index, int size) {
        byte[] pattern = (BODY_PREFIX + index + "-").getBytes(StandardCharsets.UTF_8);
        if (size <= 0) {
            return pattern;
        }
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = pattern[i % pattern.length];
        }
        return body;
    }

    /** The index a body was made from; -1 when it is not exactly such a body of its size. */
    static int indexOf(byte[] body) {
        int end = BODY_PREFIX.length();
        int index = 0;
        while (end < body.length && body[end] >= '0' && body[end] <= '9') {
            index = index * 10 + body[end++] - '0';
        }
        return java.util.Arrays.equals(body, body(index, body.length)) ? index : -1;
    }

    static Map<String, Object> full(MessageExt message) {
        return Json.object(
            "topic", message.getTopic(),
            "msgId", MessageClientIDSetter.getUniqID(message),
            "reportedMsgId", message.getMsgId(),
            "offsetMsgId", offsetMsgId(message),
            "brokerName", message.getBrokerName(),
            "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(),
            "commitLogOffset", message.getCommitLogOffset(),
            "storeSize", message.getStoreSize(),
            "body", Base64.getEncoder().encodeToString(message.getBody()),
            "keys", message.getKeys(),
            "tags", message.getTags(),
            "properties", message.getProperties(),
            "flag", message.getFlag(),
            "sysFlag", message.getSysFlag(),
            "reconsumeTimes", message.getReconsumeTimes(),
            "bornTimestamp", message.getBornTimestamp(),
            "storeTimestamp", message.getStoreTimestamp(),
            "bornHost", address(message.getBornHost()),
            "storeHost", address(message.getStoreHost()));
    }

    /** For volume: index -1 says that the body is not the one that was sent. */
    static Map<String, Object> compact(MessageExt message) {
        return Json.object(
            "index", indexOf(message.getBody()),
            "size", message.getBody().length,
            "brokerName", message.getBrokerName(),
            "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset());
    }

    private static String offsetMsgId(MessageExt message) {
        // Pulled messages are MessageClientExt, whose getMsgId is the unique id; the offset id has its own getter.
        if (message instanceof org.apache.rocketmq.common.message.MessageClientExt client) {
            return client.getOffsetMsgId();
        }
        return message.getMsgId();
    }

    private static String address(java.net.SocketAddress address) {
        return address instanceof java.net.InetSocketAddress inet
            ? inet.getAddress().getHostAddress() + ":" + inet.getPort() : String.valueOf(address);
    }
}
