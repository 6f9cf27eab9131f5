package interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.commons.cli.Options;
import org.apache.commons.cli.PosixParser;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Queries and admin calls, one per line that it is sent: a name and key=value words, separated by tabs.
 * Every line gets one answer: {"ok":true,"result":...} or {"ok":false,"code":n,"error":"..."}.
 * Types that moved between 4.x and 5.x are reached through var or reflection, so one source fits both.
 *
 * namesrv
 */
final class Query {
    private static final int TIMEOUT_MS = 20_000;

    private final DefaultMQProducer producer;
    private final DefaultMQAdminExt admin;
    private final String namesrv;

    private Query(Job job) {
        namesrv = job.args.text("namesrv");
        String instance = job.instance("query");
        producer = new DefaultMQProducer("interop-query-producer");
        Clients.prepare(producer, namesrv);
        producer.setInstanceName(instance + "-producer");
        admin = new DefaultMQAdminExt(TIMEOUT_MS);
        Clients.prepare(admin, namesrv);
        admin.setInstanceName(instance);
    }

    static void run(Job job) throws Exception {
        Query run = new Query(job);
        try {
            run.producer.start();
            run.admin.start();
            job.line(Json.object("ready", true));
            job.flush();
            for (String line = job.readLine(); line != null; line = job.readLine()) {
                job.line(run.answer(line.split("\t")));
                job.flush();
            }
        } finally {
            run.admin.shutdown();
            run.producer.shutdown();
        }
    }

    private Map<String, Object> answer(String[] words) {
        try {
            return Json.object("ok", true, "result", call(words[0], new Args(words, 1)));
        } catch (MQBrokerException e) {
            return Json.object("ok", false, "code", e.getResponseCode(), "error", String.valueOf(e.getErrorMessage()));
        } catch (MQClientException e) {
            return Json.object("ok", false, "code", e.getResponseCode(), "error", String.valueOf(e.getErrorMessage()));
        } catch (Exception e) {
            e.printStackTrace();
            return Json.object("ok", false, "code", -1, "error", String.valueOf(e));
        }
    }

    private Object call(String name, Args args) throws Exception {
        return switch (name) {
            case "viewMessage" -> found(producer.viewMessage(args.text("topic"), args.text("id")));
            case "queryByUniqueKey" -> found(
                producer.getDefaultMQProducerImpl().queryMessageByUniqKey(args.text("topic"), args.text("key")));
            case "queryByKey" -> queryByKey(args);
            case "publishQueues" -> queues(producer.fetchPublishMessageQueues(args.text("topic")));
            case "maxOffset" -> producer.maxOffset(queue(args));
            case "minOffset" -> producer.minOffset(queue(args));
            case "searchOffset" -> producer.searchOffset(queue(args), args.number64("timestamp"));
            case "earliestMsgStoreTime" -> producer.earliestMsgStoreTime(queue(args));
            case "clusterInfo" -> clusterInfo();
            case "topicRoute" -> topicRoute(args.text("topic"));
            case "topicList" -> new TreeSet<>(admin.fetchAllTopicList().getTopicList());
            case "topicConfig" -> topicConfig(admin.examineTopicConfig(args.text("addr"), args.text("topic")));
            case "createTopic" -> createTopic(args);
            case "deleteTopic" -> deleteTopic(args);
            case "createGroup" -> createGroup(args);
            case "groupConfig" -> groupConfig(args);
            case "deleteGroup" -> deleteGroup(args);
            case "runtimeInfo" -> new TreeMap<>(admin.fetchBrokerRuntimeStats(args.text("addr")).getTable());
            case "brokerConfig" -> new TreeMap<>(admin.getBrokerConfig(args.text("addr")));
            case "stats" -> admin.viewBrokerStatsData(args.text("addr"), args.text("figure"), args.text("key"))
                .getStatsMinute().getSum();
            case "wipeWritePerm" -> admin.wipeWritePermOfBroker(namesrv, args.text("broker"));
            case "addWritePerm" -> admin.addWritePermOfBroker(namesrv, args.text("broker"));
            case "putKv" -> putKv(args);
            case "getKv" -> admin.getKVConfig(args.text("namespace"), args.text("key"));
            case "kvList" -> new TreeMap<>(admin.getKVListByNamespace(args.text("namespace")).getTable());
            case "deleteKv" -> deleteKv(args);
            case "enableOrderConf" -> enableOrderConf();
            case "putOrderConf" -> putOrderConf(args);
            case "consumerClients" -> consumerClients(args.text("group"));
            case "runningInfo" -> runningInfo(args);
            case "consumerStatus" -> consumerStatus(args);
            case "resetOffset" -> offsets(admin.resetOffsetByTimestamp(
                args.text("topic"), args.text("group"), args.number64("timestamp"), args.flag("force")));
            case "consumeDirectly" -> consumeDirectly(args);
            case "mqadmin" -> mqadmin(args);
            default -> throw new IllegalArgumentException("unknown call " + name);
        };
    }

    private Object consumerClients(String group) throws Exception {
        TreeSet<String> ids = new TreeSet<>();
        for (var connection : admin.examineConsumerConnectionInfo(group).getConnectionSet()) {
            ids.add(connection.getClientId());
        }
        return ids;
    }

    private Object runningInfo(Args args) throws Exception {
        var info = admin.getConsumerRunningInfo(args.text("group"), args.text("client"), args.flag("stacks"));
        Map<String, Object> queues = new TreeMap<>();
        for (var entry : info.getMqTable().entrySet()) {
            MessageQueue queue = entry.getKey();
            queues.put(queue.getTopic() + ":" + queue.getQueueId(), entry.getValue().getCommitOffset());
        }
        TreeSet<String> subscribed = new TreeSet<>();
        for (var subscription : info.getSubscriptionSet()) {
            subscribed.add(subscription.getTopic());
        }
        return Json.object("properties", new TreeMap<>(info.getProperties()), "queues", queues, "subscribed", subscribed,
            "statuses", new TreeSet<>(info.getStatusTable().keySet()), "stacks", info.getJstack());
    }

    private Object consumerStatus(Args args) throws Exception {
        Map<String, Object> clients = new TreeMap<>();
        for (var entry : admin.getConsumeStatus(args.text("topic"), args.text("group"), args.text("client")).entrySet()) {
            clients.put(entry.getKey(), offsets(entry.getValue()));
        }
        return clients;
    }

    private static Map<String, Object> offsets(Map<MessageQueue, Long> table) {
        Map<String, Object> offsets = new TreeMap<>();
        table.forEach((queue, offset) -> offsets.put(String.valueOf(queue.getQueueId()), offset));
        return offsets;
    }

    private Object consumeDirectly(Args args) throws Exception {
        var result = admin.consumeMessageDirectly(
            args.text("group"), args.text("client"), args.text("topic"), args.text("id"));
        return Json.object("result", result.getConsumeResult().name(), "order", result.isOrder(),
            "remark", result.getRemark(), "spentMs", result.getSpentTimeMills());
    }

    /** One of mqadmin's own commands, by its class; what it prints. */
    private Object mqadmin(Args args) throws Exception {
        synchronized (Query.class) {    // what they print goes where all of this JVM do
            return printed(args);
        }
    }

    private String printed(Args args) throws Exception {
        System.setProperty("rocketmq.namesrv.addr", namesrv);    // which is what mqadmin does with its -n
        SubCommand command = (SubCommand) Class.forName("org.apache.rocketmq.tools.command." + args.text("command"))
            .getDeclaredConstructor().newInstance();
        Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream lines = System.out;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        try {
            command.execute(new PosixParser().parse(options, args.text("words").split(" ")), options, null);
        } finally {
            System.setOut(lines);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    /** A name server tells of these settings in routes only if it is asked to. */
    private Object enableOrderConf() throws Exception {
        Properties properties = new Properties();
        properties.setProperty("orderMessageEnable", "true");
        admin.updateNameServerConfig(properties, List.of(namesrv.split(";")));
        return null;
    }

    private Object putOrderConf(Args args) throws Exception {
        admin.createOrUpdateOrderConf(args.text("topic"), args.text("conf"), true);
        return null;
    }

    private static Object found(MessageExt message) {
        return message == null ? null : Messages.full(message);
    }

    private Object queryByKey(Args args) throws Exception {
        List<Object> found = new ArrayList<>();
        var result = producer.queryMessage(
            args.text("topic"), args.text("key"), args.number("max", 32), 0, Long.MAX_VALUE);
        for (MessageExt message : result.getMessageList()) {
            found.add(Messages.full(message));
        }
        return found;
    }

    private static MessageQueue queue(Args args) {
        return new MessageQueue(args.text("topic"), args.text("broker"), args.number("queue", 0));
    }

    private static Object queues(List<MessageQueue> queues) {
        TreeSet<String> names = new TreeSet<>();
        for (MessageQueue queue : queues) {
            names.add(queue.getBrokerName() + ":" + queue.getQueueId());
        }
        return names;
    }

    private Object clusterInfo() throws Exception {
        var info = admin.examineBrokerClusterInfo();
        Map<String, Object> brokers = new TreeMap<>();
        info.getBrokerAddrTable().forEach((name, data) ->
            brokers.put(name, Json.object("cluster", data.getCluster(), "addrs", new TreeMap<>(data.getBrokerAddrs()))));
        Map<String, Object> clusters = new TreeMap<>();
        info.getClusterAddrTable().forEach((name, names) -> clusters.put(name, new TreeSet<>(names)));
        return Json.object("brokers", brokers, "clusters", clusters);
    }

    private Object topicRoute(String topic) throws Exception {
        var route = admin.examineTopicRouteInfo(topic);
        Map<String, Object> queues = new TreeMap<>();
        for (var data : route.getQueueDatas()) {
            queues.put(data.getBrokerName(), Json.object(
                "readQueueNums", data.getReadQueueNums(), "writeQueueNums", data.getWriteQueueNums(),
                "perm", data.getPerm()));
        }
        Map<String, Object> brokers = new TreeMap<>();
        for (var data : route.getBrokerDatas()) {
            brokers.put(data.getBrokerName(), Json.object(
                "cluster", data.getCluster(), "addrs", new TreeMap<>(data.getBrokerAddrs())));
        }
        return Json.object("queues", queues, "brokers", brokers, "orderTopicConf", route.getOrderTopicConf());
    }

    private static Object topicConfig(TopicConfig config) {
        return config == null ? null : Json.object(
            "topic", config.getTopicName(), "readQueueNums", config.getReadQueueNums(),
            "writeQueueNums", config.getWriteQueueNums(), "perm", config.getPerm(), "order", config.isOrder());
    }

    private Object createTopic(Args args) throws Exception {
        int count = args.number("queues", 4);
        TopicConfig config = new TopicConfig(args.text("topic"), count, count, args.number("perm", 6));
        admin.createAndUpdateTopicConfig(args.text("addr"), config);
        return null;
    }

    private Object deleteTopic(Args args) throws Exception {
        admin.deleteTopicInBroker(Set.of(args.text("addr")), args.text("topic"));
        Set<String> addresses = Set.of(namesrv.split(";"));
        String topic = args.text("topic");
        String cluster = args.text("cluster");
        // The same signature in both, but 4.x takes the topic first and 5.x the cluster.
        boolean clusterFirst = MQVersion.CURRENT_VERSION >= MQVersion.Version.V5_0_0.ordinal();
        admin.deleteTopicInNameServer(addresses, clusterFirst ? cluster : topic, clusterFirst ? topic : cluster);
        return null;
    }

    private Object createGroup(Args args) throws Exception {
        Method create = null;
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals("createAndUpdateSubscriptionGroupConfig")) {
                create = method;
            }
        }
        Class<?> type = create.getParameterTypes()[1];
        Object config = type.getDeclaredConstructor().newInstance();
        type.getMethod("setGroupName", String.class).invoke(config, args.text("group"));
        type.getMethod("setRetryMaxTimes", int.class).invoke(config, args.number("retryMaxTimes", 16));
        create.invoke(admin, args.text("addr"), config);
        return null;
    }

    private Object groupConfig(Args args) throws Exception {
        var config = admin.examineSubscriptionGroupConfig(args.text("addr"), args.text("group"));
        return config == null ? null : Json.object(
            "group", config.getGroupName(), "consumeEnable", config.isConsumeEnable(),
            "retryQueueNums", config.getRetryQueueNums(), "retryMaxTimes", config.getRetryMaxTimes());
    }

    private Object deleteGroup(Args args) throws Exception {
        admin.deleteSubscriptionGroup(args.text("addr"), args.text("group"));
        return null;
    }

    private Object putKv(Args args) throws Exception {
        admin.createAndUpdateKvConfig(args.text("namespace"), args.text("key"), args.text("value"));
        return null;
    }

    private Object deleteKv(Args args) throws Exception {
        admin.deleteKvConfig(args.text("namespace"), args.text("key"));
        return null;
    }
}
