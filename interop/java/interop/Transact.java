package interop;

import java.util.Map;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A transaction producer. Sends half messages, prints one line for each and {"ready":true}, then answers the broker's
 * checks, with one line {"checked":index,...} for each, until it is asked to end.
 *
 * What becomes of a message is written in its property "fate", so that it also tells of halves sent by others:
 * commit, rollback: decided at once; checked: committed when the broker asks; pending: never decided.
 *
 * namesrv group topic [trace=true] [first] [commit=n] [rollback=n] [checked=n] [pending=n]: in this order, with rising
 * indexes
 */
final class Transact {
    private static final int HEARTBEAT_MS = 1_000;
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final String FATE = "fate";
    private static final String[] FATES = {"commit", "rollback", "checked", "pending"};

    private final Job job;
    private final Args args;
    private final TransactionMQProducer producer;

    private Transact(Job job) {
        this.job = job;
        args = job.args;
        producer = new TransactionMQProducer(null, args.text("group"), null, args.flag("trace"), null);
        Clients.prepare(producer, args.text("namesrv"));
        producer.setInstanceName(job.instance("transact"));
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return switch (message.getUserProperty(FATE)) {
                    case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
                    case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                    default -> LocalTransactionState.UNKNOW;
                };
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                Map<String, Object> line = Messages.full(message);
                line.put("checked", Messages.indexOf(message.getBody()));
                job.line(line);
                job.flush();
                // A broker may ask about one that is just being decided, and then wants to hear the same.
                return switch (message.getUserProperty(FATE)) {
                    case "commit", "checked" -> LocalTransactionState.COMMIT_MESSAGE;
                    case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                    default -> LocalTransactionState.UNKNOW;
                };
            }
        });
    }

    static void run(Job job) throws Exception {
        Transact run = new Transact(job);
        try {
            run.producer.start();
            run.send();
            job.line(Json.object("ready", true));
            job.flush();
            job.awaitEnd();
        } finally {
            run.producer.shutdown();
        }
    }

    private void send() throws Exception {
        String topic = args.text("topic");
        // Makes this producer known to the topic's brokers even if it has nothing to send.
        producer.fetchPublishMessageQueues(topic);
        int index = args.number("first", 0);
        for (String fate : FATES) {
            for (int i = 0; i < args.number(fate, 0); i++, index++) {
                Message message = new Message(topic, "red", "key-" + index, Messages.body(index, 0));
                message.putUserProperty(FATE, fate);
                var result = producer.sendMessageInTransaction(message, null);
                job.line(Json.object("index", index, "fate", fate, "status", result.getSendStatus().name(),
                    "msgId", result.getMsgId(), "state", result.getLocalTransactionState().name()));
            }
        }
    }
}
