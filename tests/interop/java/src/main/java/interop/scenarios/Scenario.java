package interop.scenarios;

import java.util.Map;

/** What official clients do together in one place; the report holds what they saw, and judges nothing. */
public interface Scenario {
    Map<String, Object> run(Place place) throws Exception;
}
