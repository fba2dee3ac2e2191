// Open loop: requests leave at fixed times whatever was answered, and latency counts from the time at which a request
// was due. A server that stands still for a second has a second's requests late, not one.
use crate::{frame, num, pct, Conn};
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub struct Plan {
    pub addr: String,
    pub conns: usize,
    pub rate: f64, // requests per second, of all connections together
    pub secs: f64,
    pub size: usize,
    pub topic: String,
    pub queues: usize,
    pub keys: bool,
    pub broker: String,
    pub depth: u64, // messages of each queue that pulls may read
    pub pause_us: u64, // from which on a latency belongs to a pause
}

const PULL: u64 = 32;

fn request(plan: &Plan, pulls: bool, c: usize, k: u64) -> Vec<u8> {
    let q = (k as usize + c) % plan.queues;
    if pulls {
        let offset = (k / plan.queues as u64 * PULL) % plan.depth.saturating_sub(PULL).max(1);
        let h = format!("{{\"code\":11,\"extFields\":{{\"consumerGroup\":\"benchc\",\"topic\":\"{}\",\"queueId\":\"{}\",\"queueOffset\":\"{}\",\"maxMsgNums\":\"{}\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\",\"subscription\":\"*\",\"subVersion\":\"0\",\"expressionType\":\"TAG\",\"bname\":\"{}\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}}", plan.topic, q, offset, PULL, plan.broker, k);
        return frame(&h, b"");
    }
    let keys = if plan.keys { format!("KEYS\\u0001k{}-{}\\u0002", c, k) } else { String::new() };
    let h = format!("{{\"code\":310,\"extFields\":{{\"a\":\"bench\",\"b\":\"{}\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"{}\",\"f\":\"0\",\"g\":\"1763700000000\",\"h\":\"0\",\"i\":\"{}UNIQ_KEY\\u00017F000001{:08X}{:016X}\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\",\"n\":\"{}\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}}", plan.topic, q, keys, c, k, plan.broker, k);
    frame(&h, &vec![b'x'; plan.size])
}

// One connection: a thread that writes at the due times, and this one, which reads.
fn connection(plan: Arc<Plan>, pulls: bool, c: usize, begin: Instant) -> (Vec<(u64, u64)>, Vec<u64>, HashMap<i64, u64>) {
    let mut k = Conn::new(&plan.addr);
    let mut out = k.s.try_clone().unwrap();
    let gap = plan.conns as f64 / plan.rate;
    let count = (plan.secs / gap) as u64;
    let due = move |i: u64, conns: usize, rate: f64| begin + Duration::from_secs_f64((i as f64 * conns as f64 + c as f64) / rate);
    let written = Arc::new(AtomicU64::new(0));
    let (mine, theirs) = (plan.clone(), written.clone());
    let writer = std::thread::spawn(move || {
        let mut late: Vec<u64> = Vec::with_capacity(count as usize);
        let mut at = 0u64;
        while at < count {
            let next = due(at, mine.conns, mine.rate);
            let now = Instant::now();
            if now < next { std::thread::sleep(next - now); continue; }
            let mut bytes = Vec::new();
            while at < count && due(at, mine.conns, mine.rate) <= now {
                late.push((now - due(at, mine.conns, mine.rate)).as_micros() as u64);
                bytes.extend(request(&mine, pulls, c, at));
                at += 1;
            }
            theirs.store(at, Ordering::SeqCst);
            if out.write_all(&bytes).is_err() { break; }
        }
        late
    });
    let mut latencies: Vec<(u64, u64)> = Vec::with_capacity(count as usize);
    let mut errs: HashMap<i64, u64> = HashMap::new();
    for _ in 0..count {
        let (h, _, _) = k.next();
        let op = num(&h, "opaque").unwrap_or(0) as u64;
        let was_due = due(op, plan.conns, plan.rate);
        let now = Instant::now();
        latencies.push(((was_due - begin).as_micros() as u64, now.saturating_duration_since(was_due).as_micros() as u64));
        let code = num(&h, "code").unwrap_or(-1);
        if code != 0 {
            if errs.is_empty() { eprintln!("first error: {}", h); }
            *errs.entry(code).or_insert(0) += 1;
        }
    }
    (latencies, writer.join().unwrap(), errs)
}

pub fn run(plan: Plan, pulls: bool) {
    let plan = Arc::new(plan);
    let begin = Instant::now() + Duration::from_millis(50);
    let begin_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + Duration::from_millis(50);
    let mut threads = Vec::new();
    for c in 0..plan.conns {
        let plan = plan.clone();
        threads.push(std::thread::spawn(move || connection(plan, pulls, c, begin)));
    }
    let (mut all, mut late, mut errs) = (Vec::new(), Vec::new(), HashMap::<i64, u64>::new());
    for t in threads {
        let (latencies, lateness, failed) = t.join().unwrap();
        all.extend(latencies);
        late.extend(lateness);
        for (code, count) in failed { *errs.entry(code).or_insert(0) += count; }
    }
    // Stretches of time whose requests were late together: (begin, length, longest), of microseconds.
    all.sort_unstable();
    let mut pauses: Vec<(u64, u64, u64)> = Vec::new();
    for &(due, took) in all.iter().filter(|one| one.1 >= plan.pause_us) {
        match pauses.last_mut() {
            Some(last) if due <= last.0 + last.1 + plan.pause_us.min(10_000) => { last.1 = last.1.max(due - last.0); last.2 = last.2.max(took); }
            _ => pauses.push((due, 0, took)),
        }
    }
    let mut took: Vec<u64> = all.iter().map(|one| one.1).collect();
    let mut histogram: Vec<(u64, u64)> = Vec::new(); // upper bound in us, doubling, and how many were at most so late
    let mut bound = 64u64;
    took.sort_unstable();
    while histogram.last().map_or(true, |last| (last.1 as usize) < took.len()) {
        histogram.push((bound, took.partition_point(|&one| one <= bound) as u64));
        bound *= 2;
    }
    let shown: Vec<String> = pauses.iter().take(5000).map(|one| format!("[{},{},{}]", one.0, one.1, one.2)).collect();
    let counts: Vec<String> = histogram.iter().map(|one| format!("[{},{}]", one.0, one.1)).collect();
    println!("{{\"requests\":{},\"errors\":{},\"p50_us\":{},\"p99_us\":{},\"p999_us\":{},\"max_us\":{},\"late_p99_us\":{},\"late_p999_us\":{},\"late_max_us\":{},\"pause_count\":{},\"begin_epoch_us\":{},\"pauses_us\":[{}],\"histogram\":[{}]}}",
        took.len(), errs.values().sum::<u64>(), pct(&mut took, 0.5), pct(&mut took, 0.99), pct(&mut took, 0.999), pct(&mut took, 1.0),
        pct(&mut late, 0.99), pct(&mut late, 0.999), pct(&mut late, 1.0), pauses.len(), begin_epoch.as_micros(), shown.join(","), counts.join(","));
}
