// A flash sale in Java, cured. `java Cured.java` listens on 127.0.0.1:9000, or on PORT.
import com.sun.net.httpserver.*;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import static java.nio.file.StandardOpenOption.*;

public class Cured {
    record Answer(int status, String body) {}
    static final int PORT = Integer.parseInt(System.getenv().getOrDefault("PORT", "9000"));
    static final Path FILE = Path.of("orders-" + PORT + ".jsonl"); // the stock, then the orders
    static final Set<String> buyers = ConcurrentHashMap.newKeySet();
    static final Map<String, Answer> byKey = new ConcurrentHashMap<>(); // by Idempotency-Key
    static volatile int left;

    // CURE: one thread at a time, from the look to the write
    static synchronized Answer buy(String user, String key) throws IOException {
        if (byKey.containsKey(key)) return byKey.get(key);
        if (buyers.contains(user)) return new Answer(409, "{\"code\":\"already_ordered\"}");
        int seen = left;
        if (seen < 1) return new Answer(409, "{\"code\":\"sold_out\"}");
        String shape = "{\"order_id\":\"%s\",\"user\":\"%s\",\"key\":\"%s\"}";
        Answer sold = new Answer(201, shape.formatted(UUID.randomUUID(), user, key));
        Files.writeString(FILE, sold.body + "\n", APPEND, DSYNC); // until it is on disk
        count(sold, seen);
        return sold;
    }

    static void count(Answer sold, int seen) {
        left = seen - 1;
        buyers.add(find("user", sold.body));
        byKey.put(find("key", sold.body), sold);
    }

    static Answer load(String text) throws IOException { // after a reset, and after a crash
        var whole = text.substring(0, text.lastIndexOf('\n') + 1).lines().toList();
        Path copy = Files.write(Path.of(FILE + ".new"), whole); // half a line never counted
        Files.move(copy, FILE, StandardCopyOption.REPLACE_EXISTING);
        buyers.clear();
        byKey.clear();
        left = Integer.parseInt(whole.get(0));
        whole.stream().skip(1).forEach(order -> count(new Answer(201, order), left));
        return new Answer(204, "");
    }

    static String find(String name, String json) {
        var member = java.util.regex.Pattern.compile("\"" + name + "\"\\s*:\\s*\"?([^\"\\\\,}]+)");
        return member.matcher(json).results().findFirst().orElseThrow().group(1);
    }

    static void handle(HttpExchange call) throws IOException {
        String body = new String(call.getRequestBody().readAllBytes());
        String key = call.getRequestHeaders().getFirst("Idempotency-Key");
        if (key == null) key = UUID.randomUUID().toString();
        Answer answer = switch (call.getRequestMethod() + " " + call.getRequestURI()) {
            case "POST /reset" -> load(find("stock", body) + "\n");
            case "POST /orders" -> buy(find("user", body), key);
            case "GET /orders" -> new Answer(200,
                "{\"orders\":" + Files.readAllLines(FILE).stream().skip(1).toList() + "}");
            case "GET /stock" -> new Answer(200, "{\"remaining\":" + left + "}");
            default -> new Answer(404, "{\"code\":\"not_found\"}");
        };
        byte[] bytes = answer.body.getBytes();
        call.sendResponseHeaders(answer.status, bytes.length == 0 ? -1 : bytes.length);
        call.getResponseBody().write(bytes);
        call.close();
    }

    public static void main(String[] arguments) throws IOException {
        System.setProperty("sun.net.httpserver.nodelay", "true");
        load(Files.exists(FILE) ? Files.readString(FILE) : "0\n");
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", PORT), 1024);
        server.setExecutor(Executors.newFixedThreadPool(64));
        server.createContext("/", Cured::handle);
        server.start();
        System.out.println("listening on http://127.0.0.1:" + PORT);
    }
}
