import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's admin tool in one process: a command a line, what it prints as the answer. */
final class Admin {
    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        Lines.print("ready", true);
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream told = new ByteArrayOutputStream();
            System.setOut(new PrintStream(told, true, "UTF-8"));
            try {
                MQAdminStartup.main0(line.split(" "), null);
            } catch (RuntimeException e) {
                e.printStackTrace(); // as its own command line would, and nothing is told
            }
            System.out.flush();
            System.setOut(out);
            Lines.print("told", told.toString("UTF-8"));
        }
        System.exit(0); // the tool leaves threads behind
    }
}
