package interop;

import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/**
 * The judges as a server, so that many commands need one JVM, which is warm from the second on: prints
 * {@code READY port}, then takes one connection a command on 127.0.0.1, several at once.
 *
 * <p>In: one line, a JSON array {@code ["command", "--name", "value", ...]}. Out: {@code RESULT {json}}, or the stack
 * trace of the failure, until the connection ends. For commands that clean up behind themselves.
 */
public final class JudgeShell {
    private static final int WAITING_MAX = 16;

    private JudgeShell() {
    }

    public static void main(String[] none) throws Exception {
        try (ServerSocket server = new ServerSocket(0, WAITING_MAX, InetAddress.getLoopbackAddress())) {
            System.out.println("READY " + server.getLocalPort());
            while (true) {
                Socket peer = server.accept();
                Thread command = new Thread(() -> serve(peer), "judge");
                command.setDaemon(true);
                command.start();
            }
        }
    }

    private static void serve(Socket peer) {
        try (peer) {
            BufferedReader reader =
                new BufferedReader(new InputStreamReader(peer.getInputStream(), StandardCharsets.UTF_8));
            String[] words = JSON.parseArray(reader.readLine(), String.class).toArray(new String[0]);
            OutputStream answer = peer.getOutputStream();
            answer.write(said(words).getBytes(StandardCharsets.UTF_8));
            answer.flush();
        } catch (IOException e) {
            e.printStackTrace(); // who asked is gone
        }
    }

    private static String said(String[] words) {
        try {
            return Main.result(words);
        } catch (Throwable e) {
            StringWriter text = new StringWriter();
            e.printStackTrace(new PrintWriter(text, true));
            return text.toString();
        }
    }
}
