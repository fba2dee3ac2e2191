package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** DefaultMQAdminExt: makes a topic and a group, sends, and finds the messages by key, by id and by offset. */
final class Admin {
    private static final int QUEUES = 6;
    private static final int MESSAGES = 10;
    private static final long WAIT_MS = 15_000;

    private final DefaultMQAdminExt admin;
    private final String topic;
    private final Map<String, Object> report = new TreeMap<>();

    private Admin(DefaultMQAdminExt admin, String topic) {
        this.admin = admin;
        this.topic = topic;
    }

    static Map<String, Object> run(Arguments arguments) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(arguments.text("namesrv"));
        admin.start();
        Admin judge = new Admin(admin, arguments.text("topic"));
        String broker = judge.cluster();
        judge.makeTopic(broker);
        judge.groups(broker, arguments.text("group"));
        List<SendResult> sent = judge.send(arguments.text("namesrv"));
        judge.find(sent);
        judge.offsets();
        judge.deleteTopic(broker);
        admin.shutdown();
        return judge.report;
    }

    private String cluster() throws Exception {
        ClusterInfo info = admin.examineBrokerClusterInfo();
        report.put("clusters", info.getClusterAddrTable());
        return info.getBrokerAddrTable().values().iterator().next().getBrokerAddrs().get(0L);
    }

    private void makeTopic(String broker) throws Exception {
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(QUEUES);
        config.setWriteQueueNums(QUEUES);
        admin.createAndUpdateTopicConfig(broker, config);
        TopicRouteData route = until(() -> admin.examineTopicRouteInfo(topic));
        report.put("routeQueues", List.of(
            route.getQueueDatas().get(0).getReadQueueNums(), route.getQueueDatas().get(0).getWriteQueueNums(),
            route.getQueueDatas().get(0).getPerm()));
        report.put("routeBroker", route.getBrokerDatas().get(0).getBrokerAddrs());
        report.put("listed", admin.fetchAllTopicList().getTopicList().contains(topic));
        TopicConfig kept = admin.examineTopicConfig(broker, topic);
        report.put("kept", List.of(kept.getReadQueueNums(), kept.getWriteQueueNums(), kept.getPerm()));
        report.put("version", admin.fetchBrokerRuntimeStats(broker).getTable().get("brokerVersionDesc"));
    }

    private void groups(String broker, String group) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setRetryMaxTimes(7);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
        report.put("groupRetries", admin.examineSubscriptionGroupConfig(broker, group).getRetryMaxTimes());
        report.put("groupListed", admin.getAllSubscriptionGroup(broker, 5_000)
            .getSubscriptionGroupTable().containsKey(group));
        admin.deleteSubscriptionGroup(broker, group, true);
        report.put("groupListedAfterDelete", admin.getAllSubscriptionGroup(broker, 5_000)
            .getSubscriptionGroupTable().containsKey(group));
    }

    private List<SendResult> send(String nameserver) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-admin-producer");
        producer.setNamesrvAddr(nameserver);
        producer.start();
        List<SendResult> sent = new ArrayList<>();
        for (int i = 0; i < MESSAGES; i++) {
            byte[] body = ("body " + i).getBytes(StandardCharsets.UTF_8);
            sent.add(producer.send(new Message(topic, "TagA", "key" + i + " shared", body)));
        }
        producer.shutdown();
        return sent;
    }

    private void find(List<SendResult> sent) throws Exception {
        long end = System.currentTimeMillis() + 3_600_000;
        QueryResult shared = until(() -> {
            QueryResult found = admin.queryMessage(topic, "shared", 32, 0, end);
            return found.getMessageList().size() == MESSAGES ? found : null;
        });
        report.put("byShared", shared == null ? -1 : shared.getMessageList().size());
        List<String> byKey = new ArrayList<>();
        List<String> byId = new ArrayList<>();
        List<String> byUniqueKey = new ArrayList<>();
        for (int i = 0; i < MESSAGES; i++) {
            for (MessageExt message : admin.queryMessage(topic, "key" + i, 32, 0, end).getMessageList()) {
                byKey.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            byId.add(text(admin.viewMessage(topic, sent.get(i).getOffsetMsgId())));
            byUniqueKey.add(text(admin.viewMessage(topic, sent.get(i).getMsgId())));
        }
        report.put("byKey", byKey);
        report.put("byId", byId);
        report.put("byUniqueKey", byUniqueKey);
        report.put("byOtherTime", count(() -> admin.queryMessage(topic, "shared", 32, 0, 1)));
        report.put("byUnknownKey", count(() -> admin.queryMessage(topic, "no such key", 32, 0, end)));
    }

    private void offsets() throws Exception {
        long messages = 0;
        long byTime = 0;
        List<MessageQueue> queues = new ArrayList<>(admin.examineTopicStats(topic).getOffsetTable().keySet());
        for (MessageQueue queue : queues) {
            messages += admin.maxOffset(queue) - admin.minOffset(queue);
            byTime += admin.searchOffset(queue, System.currentTimeMillis() + 3_600_000)
                - admin.searchOffset(queue, 0);
        }
        report.put("queues", queues.size());
        report.put("messages", messages);
        report.put("messagesByTime", byTime);
    }

    private void deleteTopic(String broker) throws Exception {
        admin.deleteTopicInBroker(java.util.Set.of(broker), topic);
        report.put("topicKeptAfterDelete",
            admin.getAllTopicConfig(broker, 5_000).getTopicConfigTable().containsKey(topic));
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static int count(Callable<QueryResult> query) throws Exception {
        try {
            return query.call().getMessageList().size();
        } catch (org.apache.rocketmq.client.exception.MQClientException e) {
            return 0; // the official client throws when nothing is found
        }
    }

    /** The first answer that is neither null nor an error: routes and index entries appear a moment later. */
    private static <T> T until(Callable<T> question) throws Exception {
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (true) {
            try {
                T answer = question.call();
                if (answer != null || System.currentTimeMillis() > deadline) {
                    return answer;
                }
            } catch (Exception e) {
                if (System.currentTimeMillis() > deadline) {
                    throw e;
                }
            }
            TimeUnit.MILLISECONDS.sleep(50);
        }
    }
}
