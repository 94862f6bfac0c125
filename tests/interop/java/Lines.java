import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** How these programs talk: `name=value` arguments in, JSON lines out. */
final class Lines {
    private static final Pattern OBJECT = Pattern.compile("\\{([^{}]*)\\}");
    private static final Pattern MEMBER = Pattern.compile("\"?(\\w+)\"?:(?:\"([^\"]*)\"|(-?\\d+))");

    /**
     * For each send. The first one of a process also loads classes and asks for the route: with
     * both cores busy it exceeds the default of 3 s, which is not what these tests are about.
     */
    static final int SEND_TIMEOUT_MS = 30_000;

    private Lines() {}

    static Map<String, String> arguments(String[] args) {
        Map<String, String> found = new LinkedHashMap<>();
        for (String arg : args) {
            int at = arg.indexOf('=');
            found.put(arg.substring(0, at), arg.substring(at + 1));
        }
        return found;
    }

    /** The innermost objects of a JSON text whose strings hold no quotes: message queues. */
    static List<Map<String, String>> objects(String json) {
        List<Map<String, String>> found = new ArrayList<>();
        Matcher objects = OBJECT.matcher(json);
        while (objects.find()) {
            Map<String, String> members = new LinkedHashMap<>();
            Matcher each = MEMBER.matcher(objects.group(1));
            while (each.find()) {
                members.put(each.group(1), each.group(2) != null ? each.group(2) : each.group(3));
            }
            found.add(members);
        }
        return found;
    }

    /** One JSON object of names and values in turn, written as a whole line. */
    static void print(Object... members) {
        synchronized (System.out) {
            System.out.println(object(members));
            System.out.flush();
        }
    }

    static String object(Object... members) {
        StringBuilder text = new StringBuilder("{");
        for (int i = 0; i < members.length; i += 2) {
            text.append(i == 0 ? "" : ",").append(value(members[i])).append(':');
            text.append(value(members[i + 1]));
        }
        return text.append('}').toString();
    }

    private static String value(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof Iterable) {
            StringBuilder text = new StringBuilder("[");
            for (Object item : (Iterable<?>) value) {
                text.append(text.length() == 1 ? "" : ",").append(value(item));
            }
            return text.append(']').toString();
        }
        if (value instanceof Map) {
            List<Object> members = new ArrayList<>();
            ((Map<?, ?>) value).forEach((name, item) -> {
                members.add(String.valueOf(name));
                members.add(item);
            });
            return object(members.toArray());
        }
        return quoted(value.toString());
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
