package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache's own allocation strategies. Each line of standard input is a strategy, the queues, the clients and who asks,
 * separated by tabs. Each answer has the queues that are theirs, as "topic/broker/queue", or the error.
 */
public final class Allocate {
    private Allocate() {
    }

    public static void main(String[] words) throws IOException {
        Program.failLoudly();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Json.line(answer(line.split("\t", -1)));
        }
        Program.end();
    }

    /** Sorted first, as Apache's consumers do before they ask their strategy. */
    private static Map<String, Object> answer(String[] fields) {
        List<MessageQueue> queues = Strategies.queues(fields[1]);
        List<String> clients = Strategies.items(fields[2]);
        Collections.sort(queues);
        Collections.sort(clients);
        List<String> mine = new ArrayList<>();
        try {
            for (MessageQueue queue
                : Strategies.of(fields[0]).allocate("group", Strategies.decoded(fields[3]), queues, clients)) {
                mine.add(queue.getTopic() + "/" + queue.getBrokerName() + "/" + queue.getQueueId());
            }
        } catch (IllegalArgumentException refusal) {
            return Json.object("error", String.valueOf(refusal.getMessage()));
        }
        return Json.object("queues", mine);
    }
}
