package interop;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Apache's strategies from the text that interop/strategies.py makes of ours: a name, and after a colon its setting. */
final class Strategies {
    private static final String[] ROOMS = {"east", "west", "north"};

    private Strategies() {
    }

    static AllocateMessageQueueStrategy of(String text) {
        String[] parts = text.split(":", 2);
        String setting = parts.length == 2 ? parts[1] : "";
        switch (parts[0]) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(Integer.parseInt(setting));
            case "CONFIG":
                AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
                byConfig.setMessageQueueList(queues(setting));
                return byConfig;
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(new HashSet<>(items(setting)));
                return byRoom;
            case "MACHINE_ROOM_NEARBY":
                return new AllocateMachineRoomNearby(of(setting), new Rooms());
            default:
                throw new IllegalArgumentException("no strategy " + text);
        }
    }

    /** "topic/broker/queue" with commas between; each name is URL-encoded. */
    static List<MessageQueue> queues(String text) {
        List<MessageQueue> queues = new ArrayList<>();
        for (String item : text.isEmpty() ? new String[0] : text.split(",")) {
            String[] names = item.split("/", -1);
            queues.add(new MessageQueue(decoded(names[0]), decoded(names[1]), Integer.parseInt(names[2])));
        }
        return queues;
    }

    static List<String> items(String text) {
        List<String> items = new ArrayList<>();
        for (String item : text.split(",", -1)) {
            items.add(decoded(item));
        }
        return items;
    }

    static String decoded(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    /** A queue's room follows from its number, a client's from its instance name: "ip@room-rest". */
    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return ROOMS[queue.getQueueId() % ROOMS.length];
        }

        @Override
        public String consumerDeployIn(String clientId) {
            int at = clientId.indexOf('@');
            int dash = clientId.indexOf('-', at);
            return at < 0 || dash < 0 ? "" : clientId.substring(at + 1, dash);
        }
    }
}
