package golden;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.StoreCheckpoint;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.index.IndexFile;

/**
 * Writes each format with Apache's own classes, always the same bytes: no clock, no random number, no address of this
 * machine goes into them. Classes that moved between 4.x and 5.x are found by their simple name, so one source fits both.
 *
 * Arguments: the folder to write to, and a folder for what comes up on the way.
 */
public final class Golden {
    private static final long BORN_MS = 1_700_000_000_123L;
    private static final long STORED_MS = 1_700_000_001_456L;
    private static final long STEP_MS = 700;
    private static final int QUEUE_ENTRIES = 8;
    private static final int INDEX_SLOTS = 7;
    private static final int INDEX_ENTRIES = 10;
    private static final String[] PACKAGES = {
        "org.apache.rocketmq.common.", "org.apache.rocketmq.common.message.", "org.apache.rocketmq.common.subscription.",
        "org.apache.rocketmq.common.protocol.body.", "org.apache.rocketmq.common.protocol.route.",
        "org.apache.rocketmq.common.admin.", "org.apache.rocketmq.remoting.protocol.",
        "org.apache.rocketmq.remoting.protocol.body.", "org.apache.rocketmq.remoting.protocol.route.",
        "org.apache.rocketmq.remoting.protocol.subscription.", "org.apache.rocketmq.remoting.protocol.admin.",
        "org.apache.rocketmq.store.", "org.apache.rocketmq.store.schedule.", "org.apache.rocketmq.broker.schedule."};

    private final Path out;
    private final Path scratch;

    private Golden(Path out, Path scratch) {
        this.out = out;
        this.scratch = scratch;
    }

    public static void main(String[] words) throws Exception {
        Golden golden = new Golden(Path.of(words[0]), Path.of(words[1]));
        Files.createDirectories(golden.out);
        Files.createDirectories(golden.scratch);
        golden.properties();
        List<byte[]> records = golden.records();
        golden.batch();
        golden.ids();
        golden.consumeQueues(records);
        golden.indexFiles();
        golden.checkpoint();
        golden.commands();
        golden.bodies();
        Runtime.getRuntime().halt(0);    // the store's threads would keep the process alive
    }

    private void write(String name, byte[] bytes) throws Exception {
        Files.write(out.resolve(name), bytes);
    }

    private void write(String name, String text) throws Exception {
        write(name, text.getBytes(StandardCharsets.UTF_8));
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    private static SocketAddress host(String address, int port) throws Exception {
        return new InetSocketAddress(InetAddress.getByName(address), port);    // an address in digits: nothing is looked up
    }

    // Messages

    private static Map<String, String> someProperties(int index) {
        Map<String, String> properties = new HashMap<>();
        properties.put("TAGS", index % 2 == 0 ? "red" : "grün");
        properties.put("KEYS", "key-" + index + " shared");
        properties.put("UNIQ_KEY", String.format("7F0000010001%020d", index));
        properties.put("colour ✓", " = ");
        properties.put("WAIT", "true");
        return properties;
    }

    private void properties() throws Exception {
        write("properties.bin", MessageDecoder.messageProperties2String(someProperties(1)));
    }

    private static MessageExt message(int index, String topic, long logOffset, String bornIp, String storeIp)
        throws Exception {
        MessageExt message = new MessageExt();
        byte[] body = index == 0 ? new byte[0] : ("body-" + index + "- grüße").getBytes(StandardCharsets.UTF_8);
        message.setTopic(topic);
        message.setBody(body);
        message.setBodyCRC(UtilAll.crc32(body));
        message.setQueueId(index % 2);
        message.setFlag(index * 7);
        message.setQueueOffset(index / 2);
        message.setCommitLogOffset(logOffset);
        message.setBornTimestamp(BORN_MS + index);
        message.setBornHost(host(bornIp, 51234));
        message.setStoreTimestamp(STORED_MS + index * STEP_MS);
        message.setStoreHost(host(storeIp, 10911));
        message.setReconsumeTimes(index);
        message.setPreparedTransactionOffset(index == 3 ? 4_294_967_296L : 0);
        message.setSysFlag(index == 3 ? MessageSysFlag.TRANSACTION_COMMIT_TYPE : 0);
        if (bornIp.contains(":")) {
            message.setBornHostV6Flag();
        }
        if (storeIp.contains(":")) {
            message.setStoreHostAddressV6Flag();
        }
        MessageAccessor.setProperties(message, someProperties(index));
        return message;
    }

    /** Records that follow each other from offset 0 of a log on; the second last is a delayed one. */
    private List<byte[]> records() throws Exception {
        List<byte[]> records = new ArrayList<>();
        long offset = 0;
        String v4 = "192.0.2.7";
        String v6 = "2001:db8::7";
        String[][] hosts = {{v4, v4}, {v4, v4}, {v6, v4}, {v4, v6}, {v6, v6}, {v4, v4}};
        for (int index = 0; index < hosts.length; index++) {
            boolean delayed = index == 5;
            MessageExt message = message(
                index, delayed ? "SCHEDULE_TOPIC_XXXX" : "orders", offset, hosts[index][0], hosts[index][1]);
            if (delayed) {
                message.setQueueId(2);
                message.setQueueOffset(0);
                MessageAccessor.putProperty(message, "DELAY", "3");
                MessageAccessor.putProperty(message, "REAL_TOPIC", "orders");
                MessageAccessor.putProperty(message, "REAL_QID", "1");
            }
            byte[] record = MessageDecoder.encode(message, false);
            records.add(record);
            offset += record.length;
        }
        longTopic(offset).ifPresent(records::add);
        write("records.bin", joined(records));
        return records;
    }

    /** A topic of more than 127 bytes has a record of its own kind, which 4.x does not know. */
    private java.util.Optional<byte[]> longTopic(long offset) throws Exception {
        Class<?> encoderType = find("MessageExtEncoder");
        if (encoderType == null) {
            return java.util.Optional.empty();
        }
        MessageExt model = message(6, "%RETRY%" + "g".repeat(193), offset, "192.0.2.7", "192.0.2.7");
        MessageExt inner = (MessageExt) make("MessageExtBrokerInner");
        inner.setTopic(model.getTopic());
        inner.setBody(model.getBody());
        inner.setQueueId(model.getQueueId());
        inner.setFlag(model.getFlag());
        inner.setQueueOffset(model.getQueueOffset());
        inner.setBornTimestamp(model.getBornTimestamp());
        inner.setBornHost(model.getBornHost());
        inner.setStoreTimestamp(model.getStoreTimestamp());
        inner.setStoreHost(model.getStoreHost());
        inner.setReconsumeTimes(model.getReconsumeTimes());
        inner.setBodyCRC(model.getBodyCRC());
        set(inner, "PropertiesString", MessageDecoder.messageProperties2String(model.getProperties()));
        Class<?> versions = find("MessageVersion");
        set(inner, "Version", versions.getField("MESSAGE_VERSION_V2").get(null));
        Object encoder = encoderType.getConstructor(MessageStoreConfig.class).newInstance(new MessageStoreConfig());
        Object refused = encoderType.getMethod("encode", inner.getClass()).invoke(encoder, inner);
        if (refused != null) {
            throw new IllegalStateException("a long topic was refused: " + refused);
        }
        ByteBuffer buffer = (ByteBuffer) encoderType.getMethod("getEncoderBuffer").invoke(encoder);
        byte[] record = new byte[buffer.getInt(0)];
        buffer.get(0, record);
        ByteBuffer.wrap(record).putLong(28, offset);    // the append writes its place, once it knows it
        return java.util.Optional.of(record);
    }

    private void batch() throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int index = 0; index < 3; index++) {
            messages.add(message(index, "orders", 0, "192.0.2.7", "192.0.2.7"));
        }
        write("batch.bin", MessageDecoder.encodeMessages(messages));
    }

    private void ids() throws Exception {
        String unique = "C00002071A2B00C0FFEE0000303900FF";
        StringBuilder text = new StringBuilder();
        for (String ip : new String[] {"192.0.2.7", "2001:db8::7"}) {
            text.append(MessageDecoder.createMessageId(host(ip, 10911), 4_294_967_299L)).append('\n');
        }
        text.append(unique).append(' ').append(MessageClientIDSetter.getIPStrFromID(unique)).append(' ')
            .append(MessageClientIDSetter.getPidFromID(unique)).append('\n');
        write("ids.txt", text.toString());
    }

    // The store

    /** What the records leave in the queues, as Apache's commit log reads them and its dispatcher enters them. */
    private void consumeQueues(List<byte[]> records) throws Exception {
        DefaultMessageStore store = store();
        ByteBuffer log = ByteBuffer.wrap(joined(records));
        Map<String, ConsumeQueue> queues = new HashMap<>();
        for (int i = 0; i < records.size(); i++) {
            DispatchRequest request = store.getCommitLog().checkMessageAndReturnSize(log, true, false);
            if (!request.isSuccess()) {
                throw new IllegalStateException("record " + i + " was refused");
            }
            String name = request.getTopic() + "-" + request.getQueueId();
            ConsumeQueue queue = queues.computeIfAbsent(name, unused -> new ConsumeQueue(request.getTopic(),
                request.getQueueId(), scratch.resolve("queues").toString(), QUEUE_ENTRIES * ConsumeQueue.CQ_STORE_UNIT_SIZE,
                store));
            enter(queue, request);
        }
        for (ConsumeQueue queue : queues.values()) {
            queue.flush(0);
            Path folder = scratch.resolve("queues").resolve(queue.getTopic()).resolve(String.valueOf(queue.getQueueId()));
            String topic = queue.getTopic().length() > 127 ? "long" : queue.getTopic();
            write("queue-" + topic + "-" + queue.getQueueId() + ".bin",
                Files.readAllBytes(folder.resolve("0".repeat(20))));
        }
    }

    private DefaultMessageStore store() throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(scratch.resolve("store").toString());
        config.setStorePathCommitLog(scratch.resolve("store").resolve("commitlog").toString());
        Constructor<?> constructor = Stream.of(DefaultMessageStore.class.getConstructors())
            .max((one, other) -> one.getParameterCount() - other.getParameterCount()).orElseThrow();
        Object[] four = {config, null, null, new BrokerConfig(), new ConcurrentHashMap<String, TopicConfig>()};
        DefaultMessageStore store = (DefaultMessageStore) constructor.newInstance(
            java.util.Arrays.copyOf(four, constructor.getParameterCount()));
        if (!store.load()) {
            throw new IllegalStateException("an empty store was refused");
        }
        return store;
    }

    private static void enter(ConsumeQueue queue, DispatchRequest request) throws Exception {
        for (Method method : ConsumeQueue.class.getMethods()) {
            if (method.getName().equals("putMessagePositionInfoWrapper")) {
                Object[] given = {request, false};
                method.invoke(queue, java.util.Arrays.copyOf(given, method.getParameterCount()));
                return;
            }
        }
        throw new IllegalStateException("a consume queue takes no entries");
    }

    /** Two files, the second begun when the first was full. Keys share slots, and one key comes again. */
    private void indexFiles() throws Exception {
        long endOffset = 0;
        long endTime = 0;
        int number = 0;
        for (int part = 0; part < 2; part++) {
            Path path = scratch.resolve("2023111422132145" + part);
            IndexFile file = new IndexFile(path.toString(), INDEX_SLOTS, INDEX_ENTRIES, endOffset, endTime);
            while (number < 12 && !file.isWriteFull()) {
                if (!file.putKey("orders#" + (number % 4 == 3 ? "shared" : "key-" + number),
                    1000L + number * 100, STORED_MS + number * STEP_MS)) {
                    throw new IllegalStateException("key " + number + " was refused");
                }
                number++;
            }
            file.flush();
            endOffset = file.getEndPhyOffset();
            endTime = file.getEndTimestamp();
            write("index-" + part + ".bin", Files.readAllBytes(path));
        }
    }

    private void checkpoint() throws Exception {
        Path path = scratch.resolve("checkpoint");
        StoreCheckpoint checkpoint = new StoreCheckpoint(path.toString());
        checkpoint.setPhysicMsgTimestamp(STORED_MS);
        checkpoint.setLogicsMsgTimestamp(STORED_MS - STEP_MS);
        checkpoint.setIndexMsgTimestamp(STORED_MS - 2 * STEP_MS);
        checkpoint.flush();
        write("checkpoint.bin", Files.readAllBytes(path));
    }

    // The wire

    private void commands() throws Exception {
        for (SerializeType type : SerializeType.values()) {
            RemotingCommand request = command(310, 0, null);
            HashMap<String, String> fields = new HashMap<>();
            fields.put("a", "producers");
            fields.put("b", "orders");
            fields.put("i", MessageDecoder.messageProperties2String(someProperties(1)));
            fields.put("m", "false");
            request.setExtFields(fields);
            request.setBody("grüße".getBytes(StandardCharsets.UTF_8));
            writeCommand("request", type, request);
            writeCommand("oneway", type, command(34, 2, null));
            writeCommand("reply", type, command(17, 1, "no route for \"orders\" ✓"));
        }
    }

    private static RemotingCommand command(int code, int flag, String remark) {
        RemotingCommand command = RemotingCommand.createRequestCommand(code, null);
        command.setVersion(401);
        command.setOpaque(4711);
        command.setFlag(flag);
        command.setRemark(remark);
        return command;
    }

    private void writeCommand(String name, SerializeType type, RemotingCommand command) throws Exception {
        command.setSerializeTypeCurrentRPC(type);
        write("command-" + name + "-" + type + ".bin", bytes(command.encode()));
    }

    private void bodies() throws Exception {
        Object version = make("DataVersion");
        set(version, "Timestamp", BORN_MS);
        find("DataVersion").getMethod("setCounter", java.util.concurrent.atomic.AtomicLong.class)
            .invoke(version, new java.util.concurrent.atomic.AtomicLong(3));

        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        topics.put("orders", new TopicConfig("orders", 3, 4, 6));
        topics.put("%RETRY%billing", new TopicConfig("%RETRY%billing", 1, 1, 6));
        Object topicTable = make("TopicConfigSerializeWrapper");
        set(topicTable, "TopicConfigTable", topics);
        set(topicTable, "DataVersion", version);
        writeBody("topics", topicTable);

        Object group = make("SubscriptionGroupConfig");
        set(group, "GroupName", "billing");
        set(group, "RetryMaxTimes", 5);
        ConcurrentMap<String, Object> groups = new ConcurrentHashMap<>();
        groups.put("billing", group);
        Object groupTable = make("SubscriptionGroupWrapper");
        set(groupTable, "SubscriptionGroupTable", groups);
        set(groupTable, "DataVersion", version);
        writeBody("subscriptionGroup", groupTable);

        ConcurrentMap<String, ConcurrentMap<Integer, Long>> offsets = new ConcurrentHashMap<>();
        offsets.put("orders@billing", new ConcurrentHashMap<>(Map.of(0, 12L, 1, 4_294_967_299L)));
        offsets.put("%RETRY%billing@billing", new ConcurrentHashMap<>(Map.of(0, 1L)));
        Object offsetTable = make("ConsumerOffsetSerializeWrapper");
        set(offsetTable, "OffsetTable", offsets);
        if (has(offsetTable, "setDataVersion")) {
            set(offsetTable, "DataVersion", version);
        }
        writeBody("consumerOffset", offsetTable);
        route();
        consumerCalls();
    }

    /** What brokers ask of consumers. Maps that keep their order, so that the files are always the same. */
    private void consumerCalls() throws Exception {
        MessageQueue first = new MessageQueue("orders", "broker-a", 0);
        MessageQueue second = new MessageQueue("orders", "broker-a", 1);
        Map<MessageQueue, Long> offsets = new LinkedHashMap<>();
        offsets.put(first, 7L);
        offsets.put(second, 4_294_967_299L);
        Object reset = make("ResetOffsetBody");
        set(reset, "OffsetTable", offsets);
        write("resetOffset.json", RemotingSerializable.encode(reset));

        Object status = make("GetConsumerStatusBody");
        set(status, "MessageQueueTable", offsets);
        Map<MessageQueue, Long> others = Map.of(new MessageQueue("orders", "broker-a", 1), 8L);
        set(status, "ConsumerTable", new HashMap<>(Map.of("192.0.2.9@1", others)));
        write("consumerStatus.json", RemotingSerializable.encode(status));

        Object result = make("ConsumeMessageDirectlyResult");
        Class<?> results = find("CMResult");
        set(result, "Order", true);
        set(result, "AutoCommit", false);
        set(result, "ConsumeResult", results.getField("CR_THROW_EXCEPTION").get(null));
        set(result, "Remark", "java.lang.IllegalStateException: grün");
        set(result, "SpentTimeMills", 12L);
        write("consumeDirectly.json", RemotingSerializable.encode(result));
        runningInfo(first);
    }

    private void runningInfo(MessageQueue queue) throws Exception {
        Object progress = make("ProcessQueueInfo");
        set(progress, "CommitOffset", 7L);
        set(progress, "CachedMsgCount", 3);
        set(progress, "CachedMsgMinOffset", 7L);
        set(progress, "CachedMsgMaxOffset", 9L);
        set(progress, "Locked", true);
        set(progress, "LastPullTimestamp", BORN_MS);
        set(progress, "LastConsumeTimestamp", STORED_MS);
        Object speed = make("ConsumeStatus");
        set(speed, "PullRT", 1.5);
        set(speed, "ConsumeFailedMsgs", 2L);
        Object info = make("ConsumerRunningInfo");
        java.util.Properties properties = new java.util.Properties();
        properties.setProperty("PROP_CONSUMEORDERLY", "true");
        set(info, "Properties", properties);
        set(info, "MqTable", new TreeMap<>(Map.of(queue, progress)));
        set(info, "StatusTable", new TreeMap<>(Map.of("orders", speed)));
        set(info, "Jstack", "main\n\tat a.B.c(B.java:1)");
        write("runningInfo.json", RemotingSerializable.encode(info));
    }

    private void route() throws Exception {
        Object broker = make("BrokerData");
        set(broker, "Cluster", "DefaultCluster");
        set(broker, "BrokerName", "broker-a");
        set(broker, "BrokerAddrs", new HashMap<>(Map.of(0L, "192.0.2.7:10911", 1L, "192.0.2.8:10911")));
        Object queues = make("QueueData");
        set(queues, "BrokerName", "broker-a");
        set(queues, "ReadQueueNums", 3);
        set(queues, "WriteQueueNums", 4);
        set(queues, "Perm", 6);
        Object route = make("TopicRouteData");
        set(route, "BrokerDatas", new ArrayList<>(List.of(broker)));
        set(route, "QueueDatas", new ArrayList<>(List.of(queues)));
        set(route, "FilterServerTable", new HashMap<String, List<String>>());
        write("route.json", RemotingSerializable.encode(route));
    }

    /** As a broker keeps it in a file, and as it sends it. */
    private void writeBody(String name, Object body) throws Exception {
        write(name + ".json", RemotingSerializable.toJson(body, true));
        write(name + "-sent.json", RemotingSerializable.encode(body));
    }

    // Helpers

    private static byte[] joined(List<byte[]> parts) {
        ByteBuffer all = ByteBuffer.allocate(parts.stream().mapToInt(part -> part.length).sum());
        parts.forEach(all::put);
        return all.array();
    }

    private static Class<?> find(String name) {
        for (String prefix : PACKAGES) {
            try {
                return Class.forName(prefix + name);
            } catch (ClassNotFoundException e) {
                continue;    // it lives elsewhere in this version
            }
        }
        return null;
    }

    private static Object make(String name) throws Exception {
        return find(name).getDeclaredConstructor().newInstance();
    }

    private static boolean has(Object bean, String name) {
        return Stream.of(bean.getClass().getMethods()).anyMatch(method -> method.getName().equals(name));
    }

    private static void set(Object bean, String property, Object value) throws Exception {
        for (Method method : bean.getClass().getMethods()) {
            if (method.getName().equals("set" + property) && method.getParameterCount() == 1) {
                method.invoke(bean, value);
                return;
            }
        }
        throw new IllegalStateException(bean.getClass() + " has no " + property);
    }
}
