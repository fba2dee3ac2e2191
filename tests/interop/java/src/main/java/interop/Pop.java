package interop;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.ClientRemotingProcessor;
import org.apache.rocketmq.client.impl.mqclient.DoNothingClientRemotingProcessor;
import org.apache.rocketmq.client.impl.mqclient.MQClientAPIExt;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.NotificationRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** POP, as push consumers with clientRebalance=false and as the proxy (MQClientAPIExt) use it. */
public final class Pop {
    private static final String BROKER = "broker-a";
    private static final long TIMEOUT = 10_000;

    private Pop() {
    }

    /** Set the group's mode (401), then consume; each --failing'th message is given back once. */
    public static Map<String, Object> push(Arguments arguments) throws Exception {
        int expect = arguments.number("expect", 1);
        int failEvery = arguments.number("failing", 0);
        String topic = arguments.text("topic");
        MQClientAPIExt api = api(arguments);
        api.setMessageRequestMode(arguments.text("broker"), topic, arguments.text("group"),
            MessageRequestMode.POP, arguments.number("share", 0), TIMEOUT);
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        TreeSet<String> brought = new TreeSet<>();
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.text("group"));
        consumer.setNamesrvAddr(arguments.text("namesrv"));
        consumer.setClientRebalance(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Map<String, Boolean> done = new ConcurrentHashMap<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody());
                int times = seen.merge(body, 1, Integer::sum);
                if (failEvery > 0 && times == 1 && Math.floorMod(body.hashCode(), failEvery) == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                if (times > 1) {
                    synchronized (brought) {
                        brought.add(message.getTopic() + " " + message.getReconsumeTimes());
                    }
                }
                done.put(body, true);
            }
            if (done.size() >= expect) {
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("READY");
        boolean complete = all.await(arguments.number("seconds", 60), TimeUnit.SECONDS);
        TimeUnit.MILLISECONDS.sleep(500); // the last acknowledgements leave asynchronously
        boolean popped = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().size() > 0;
        consumer.shutdown();
        api.shutdown();
        Map<String, Object> report = new TreeMap<>();
        report.put("complete", complete);
        report.put("distinct", done.size());
        report.put("deliveries", seen.values().stream().mapToInt(Integer::intValue).sum());
        report.put("brought", brought);
        report.put("popped", popped);
        return report;
    }

    /** The proxy's calls: pop everything, settle it in every way, pop what comes back. */
    public static Map<String, Object> api(Arguments arguments, boolean ordered) throws Exception {
        MQClientAPIExt api = api(arguments);
        try {
            return ordered ? ordered(api, arguments) : settled(api, arguments);
        } finally {
            api.shutdown();
        }
    }

    private static Map<String, Object> settled(MQClientAPIExt api, Arguments arguments) throws Exception {
        int expect = arguments.number("expect", 32);
        Map<String, Object> report = new TreeMap<>();
        List<MessageExt> messages = new ArrayList<>();
        while (messages.size() < expect) {
            PopResult result = pop(api, arguments, 30_000, 2_000, false, null);
            if (result.getPopStatus() != PopStatus.FOUND) {
                break;
            }
            messages.addAll(result.getMsgFoundList());
        }
        report.put("first", bodies(messages).size());
        List<String> batch = new ArrayList<>();
        List<String> statuses = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            MessageExt message = messages.get(i);
            String name = message.getProperty(MessageConst.PROPERTY_POP_CK);
            switch (i % 4) {
                case 0 -> batch.add(name);
                case 1 -> statuses.add(ack(api, arguments, name).name());
                case 2 -> statuses.add(hide(api, arguments, name, 1_000).getStatus().name());
                default -> { // more time, then acknowledged by the new name
                    AckResult longer = hide(api, arguments, name, 20_000);
                    statuses.add(ack(api, arguments, longer.getExtraInfo()).name());
                }
            }
        }
        statuses.add(api.batchAckMessageAsync(arguments.text("broker"), arguments.text("topic"),
            arguments.text("group"), batch, TIMEOUT).get().getStatus().name());
        report.put("statuses", new TreeSet<>(statuses));
        int due = messages.size() / 4;
        List<MessageExt> again = new ArrayList<>();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(arguments.number("seconds", 30));
        while (again.size() < due && System.nanoTime() < end) {
            PopResult result = pop(api, arguments, 30_000, 2_000, false, null);
            if (result.getPopStatus() == PopStatus.FOUND) {
                again.addAll(result.getMsgFoundList());
            }
        }
        TreeSet<String> times = new TreeSet<>();
        for (MessageExt message : again) {
            times.add(message.getTopic() + " " + message.getReconsumeTimes());
            ack(api, arguments, message.getProperty(MessageConst.PROPERTY_POP_CK));
        }
        report.put("again", bodies(again).size());
        report.put("times", times);
        report.put("rest", pop(api, arguments, 30_000, 1_000, false, null).getPopStatus().name());
        NotificationRequestHeader wait = new NotificationRequestHeader();
        wait.setTopic(arguments.text("topic"));
        wait.setConsumerGroup(arguments.text("group"));
        wait.setQueueId(-1);
        wait.setPollTime(500);
        wait.setBornTime(System.currentTimeMillis());
        report.put("notified", api.notification(arguments.text("broker"), wait, TIMEOUT).get());
        return report;
    }

    private static Map<String, Object> ordered(MQClientAPIExt api, Arguments arguments) throws Exception {
        int expect = arguments.number("expect", 32);
        Map<String, Object> report = new TreeMap<>();
        List<String> order = new ArrayList<>();
        Map<Integer, Long> last = new HashMap<>();
        boolean rising = true;
        boolean blocked = false;
        TreeSet<Integer> times = new TreeSet<>();
        boolean failed = false;
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(arguments.number("seconds", 40));
        while (order.size() < expect && System.nanoTime() < end) {
            PopResult result = pop(api, arguments, 2_000, 3_000, true, "attempt-" + System.nanoTime());
            if (result.getPopStatus() != PopStatus.FOUND) {
                continue;
            }
            if (!failed) { // these queues are taken: others get nothing of them; nothing is acknowledged
                failed = true;
                TreeSet<Integer> taken = queues(result);
                PopResult other = pop(api, arguments, 2_000, 200, true, "another");
                blocked = other.getPopStatus() != PopStatus.FOUND || !taken.removeAll(queues(other));
                continue;
            }
            for (MessageExt message : result.getMsgFoundList()) {
                times.add(message.getReconsumeTimes());
                long before = last.getOrDefault(message.getQueueId(), -1L);
                rising &= message.getQueueOffset() == before + 1;
                last.put(message.getQueueId(), message.getQueueOffset());
                order.add(new String(message.getBody()));
                ack(api, arguments, message.getProperty(MessageConst.PROPERTY_POP_CK));
            }
        }
        report.put("received", order.size());
        report.put("rising", rising);
        report.put("blocked", blocked);
        report.put("times", times);
        return report;
    }

    private static MQClientAPIExt api(Arguments arguments) {
        ClientConfig config = new ClientConfig();
        config.setNamesrvAddr(arguments.text("namesrv"));
        ClientRemotingProcessor nothing = new DoNothingClientRemotingProcessor(null);
        MQClientAPIExt api = new MQClientAPIExt(config, new NettyClientConfig(), nothing, null);
        api.updateNameServerAddressList(arguments.text("namesrv"));
        api.start();
        return api;
    }

    private static PopResult pop(MQClientAPIExt api, Arguments arguments, long invisible, long poll, boolean ordered,
        String attempt) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setTopic(arguments.text("topic"));
        header.setConsumerGroup(arguments.text("group"));
        header.setQueueId(-1);
        header.setMaxMsgNums(32);
        header.setInvisibleTime(invisible);
        header.setPollTime(poll);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(ordered);
        header.setAttemptId(attempt);
        return api.popMessageAsync(arguments.text("broker"), BROKER, header, poll + TIMEOUT).get();
    }

    private static AckStatus ack(MQClientAPIExt api, Arguments arguments, String name) throws Exception {
        String[] fields = ExtraInfoUtil.split(name);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(fields, arguments.text("topic"), arguments.text("group")));
        header.setConsumerGroup(arguments.text("group"));
        header.setQueueId(ExtraInfoUtil.getQueueId(fields));
        header.setOffset(ExtraInfoUtil.getQueueOffset(fields));
        header.setExtraInfo(name);
        return api.ackMessageAsync(arguments.text("broker"), header, TIMEOUT).get().getStatus();
    }

    private static AckResult hide(MQClientAPIExt api, Arguments arguments, String name, long invisible)
        throws Exception {
        String[] fields = ExtraInfoUtil.split(name);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(fields, arguments.text("topic"), arguments.text("group")));
        header.setConsumerGroup(arguments.text("group"));
        header.setQueueId(ExtraInfoUtil.getQueueId(fields));
        header.setOffset(ExtraInfoUtil.getQueueOffset(fields));
        header.setExtraInfo(name);
        header.setInvisibleTime(invisible);
        return api.changeInvisibleTimeAsync(arguments.text("broker"), BROKER, header, TIMEOUT).get();
    }

    private static TreeSet<Integer> queues(PopResult result) {
        TreeSet<Integer> found = new TreeSet<>();
        result.getMsgFoundList().forEach(message -> found.add(message.getQueueId()));
        return found;
    }

    private static TreeSet<String> bodies(List<MessageExt> messages) {
        TreeSet<String> found = new TreeSet<>();
        messages.forEach(message -> found.add(new String(message.getBody())));
        return found;
    }
}
