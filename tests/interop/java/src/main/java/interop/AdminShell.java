package interop;

import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin as a server, so that many commands need one JVM: prints {@code READY port}, then takes one connection a
 * command on 127.0.0.1.
 *
 * <p>In: one line, a JSON array {@code [seconds, "command", "-option", ...]}. Out: all that the command printed, until
 * the connection ends. A command that never ends (clusterRT) is interrupted after that many seconds.
 */
public final class AdminShell {
    private static final long LOOK_MS = 5;

    private AdminShell() {
    }

    public static void main(String[] words) throws Exception {
        PrintStream out = System.out;
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            out.println("READY " + server.getLocalPort());
            while (true) {
                try (Socket peer = server.accept()) {
                    BufferedReader reader =
                        new BufferedReader(new InputStreamReader(peer.getInputStream(), StandardCharsets.UTF_8));
                    OutputStream answer = peer.getOutputStream();
                    answer.write(run(JSON.parseArray(reader.readLine()).toArray()));
                    answer.flush();
                }
            }
        }
    }

    private static byte[] run(Object[] line) throws Exception {
        String[] words = new String[line.length - 1];
        for (int i = 0; i < words.length; i++) {
            words[i] = line[i + 1].toString();
        }
        forgetCommands();
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        try {
            Thread command = new Thread(() -> MQAdminStartup.main0(words, null), words[0]);
            command.setDaemon(true);
            command.start();
            await(command, TimeUnit.SECONDS.toNanos(((Number) line[0]).longValue()));
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        both.flush();
        return printed.toByteArray();
    }

    private static void await(Thread command, long limitNanos) throws InterruptedException {
        long end = System.nanoTime() + limitNanos;
        boolean stopped = false;
        while (command.isAlive()) {
            command.join(LOOK_MS);
            if (System.nanoTime() > end && !stopped) {
                command.interrupt();
                stopped = true;
            } else if (waitsForService(command)) {
                command.interrupt();
            }
        }
    }

    /** Whether a command is done but for its client's shutdown, which waits up to 3 s for a thread that polls. */
    private static boolean waitsForService(Thread command) {
        for (StackTraceElement call : command.getStackTrace()) {
            if (call.getClassName().equals(ServiceThread.class.getName()) && call.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }

    /** mqadmin keeps its commands for life, and some of them keep a client that was shut down. */
    private static void forgetCommands() throws ReflectiveOperationException {
        Field commands = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        commands.setAccessible(true);
        ((List<?>) commands.get(null)).clear();
    }
}
