// Neutral load generator for the RocketMQ remoting protocol: pre-built frames, pipelined windows, blocking sockets.
mod ledger;
mod open_loop;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn frame(header: &str, body: &[u8]) -> Vec<u8> {
    let h = header.as_bytes();
    let mut v = Vec::with_capacity(8 + h.len() + body.len());
    v.extend(((4 + h.len() + body.len()) as u32).to_be_bytes());
    v.extend((h.len() as u32).to_be_bytes());
    v.extend(h);
    v.extend(body);
    v
}
/// Bytes that one read may bring.
const READ_SIZE: usize = 262144;
/// What was read lies in `buf` from `at` to `end`. The buffer is kept: to clear it for each read takes longer than a pull.
struct Conn { s: TcpStream, buf: Vec<u8>, at: usize, end: usize }
impl Conn {
    fn new(addr: &str) -> Conn { let s = TcpStream::connect(addr).unwrap(); s.set_nodelay(true).unwrap(); s.set_read_timeout(Some(Duration::from_secs(30))).unwrap(); Conn { s, buf: vec![0; 2 * READ_SIZE], at: 0, end: 0 } }
    /// Size of the frame that is next, if all of it was read.
    fn whole(&self) -> Option<usize> {
        let have = self.end - self.at;
        if have < 4 { return None; }
        let n = u32::from_be_bytes(self.buf[self.at..self.at + 4].try_into().unwrap()) as usize;
        (have >= 4 + n).then_some(n)
    }
    // next response: (header json, body)
    fn next(&mut self) -> (&str, &[u8], u8) {
        loop {
            if let Some(n) = self.whole() {
                let p = self.at + 4;
                self.at += 4 + n;
                let frame = &self.buf[p..p + n];
                let hw = u32::from_be_bytes(frame[..4].try_into().unwrap());
                let (h, b) = frame[4..].split_at((hw & 0xffffff) as usize);
                return (std::str::from_utf8(h).expect("a header is text"), b, (hw >> 24) as u8);
            }
            let have = self.end - self.at;
            self.buf.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, have);
            if self.buf.len() < have + READ_SIZE { self.buf.resize(have + 2 * READ_SIZE, 0); }
            let r = self.s.read(&mut self.buf[have..]).expect("read");
            if r == 0 { panic!("closed by peer"); }
            self.end += r;
        }
    }
}
fn num(h: &str, key: &str) -> Option<i64> {
    let k = format!("\"{}\":", key);
    let i = h.find(&k)? + k.len();
    let t = &h[i..];
    let t = t.trim_start_matches('"');
    let e = t.find(|c: char| !(c.is_ascii_digit() || c == '-')).unwrap_or(t.len());
    t[..e].parse().ok()
}
// One entry of a SEND_BATCH_MESSAGE body.
fn entry(out: &mut Vec<u8>, properties: &str, body: &[u8]) {
    let size = 22 + body.len() + properties.len();
    for word in [size, 0, 0, 0, body.len()] { out.extend((word as u32).to_be_bytes()); }
    out.extend(body);
    out.extend((properties.len() as u16).to_be_bytes());
    out.extend(properties.as_bytes());
}
fn pct(v: &mut Vec<u64>, p: f64) -> u64 { if v.is_empty() { return 0; } v.sort_unstable(); v[((v.len() - 1) as f64 * p) as usize] }
fn main() {
    let mut a: HashMap<String, String> = HashMap::new();
    let args: Vec<String> = std::env::args().collect();
    let cmd = args[1].clone();
    let mut i = 2; while i + 1 < args.len() { a.insert(args[i].trim_start_matches('-').to_string(), args[i + 1].clone()); i += 2; }
    let g = |k: &str, d: &str| a.get(k).cloned().unwrap_or(d.to_string());
    let addr = g("addr", "127.0.0.1:10911");
    let conns: usize = g("conns", "1").parse().unwrap();
    let window: usize = g("window", "64").parse().unwrap();
    let size: usize = g("size", "128").parse().unwrap();
    let secs: f64 = g("secs", "5").parse().unwrap();
    let topic = g("topic", "Bench");
    let keys = g("keys", "0") == "1";
    let queues: usize = g("queues", "4").parse().unwrap();
    let topics: usize = g("topics", "1").parse().unwrap(); // more than one: sends go to <topic>-0, <topic>-1, ... in turn
    let apart = g("apart", "0") == "1"; // a send leaves as soon as one is answered, else when all answers of a read are taken
    let groups: usize = g("groups", "1").parse().unwrap(); // more than one: connection c pulls for group benchc-(c mod groups)
    let broker = g("broker", "broker-a");
    let batch: usize = g("batch", "1").parse().unwrap(); // more than one: so many messages in each send, as SEND_BATCH_MESSAGE
    let max: usize = g("max", "32").parse().unwrap(); // messages that a pull asks for
    let nkeys: u64 = g("nkeys", "100000").parse().unwrap(); // query asks for keys k0-0 .. k0-(nkeys-1)
    if cmd == "open-send" || cmd == "open-pull" {
        let plan = open_loop::Plan {
            addr, conns, secs, size, topic, queues, keys, broker,
            rate: g("rate", "1000").parse().unwrap(),
            depth: g("depth", "10000").parse().unwrap(),
            pause_us: g("pause-us", "25000").parse().unwrap(),
        };
        return open_loop::run(plan, cmd == "open-pull");
    }
    if cmd == "ledger" {
        let rate = g("rate", "500").parse().unwrap();
        return ledger::run(ledger::Plan { namesrv: g("namesrv", ""), topic, broker, conns, window, rate, queues });
    }
    let t0 = Instant::now();
    let mut th = Vec::new();
    for c in 0..conns {
        let (addr, topic, cmd, broker) = (addr.clone(), topic.clone(), cmd.clone(), broker.clone());
        th.push(std::thread::spawn(move || {
            let mut k = Conn::new(&addr);
            let end = Instant::now() + Duration::from_secs_f64(secs);
            let (mut done, mut err, mut bytes, mut sent, mut msgs) = (0u64, 0u64, 0u64, 0u64, 0u64);
            let mut lat: Vec<u64> = Vec::new();
            let mut errs: HashMap<i64, u64> = HashMap::new();
            if cmd == "send" {
                let body = vec![b'x'; size];
                let mut starts: HashMap<i64, Instant> = HashMap::new();
                let mut out: Vec<u8> = Vec::new();
                let mut group: Vec<u8> = Vec::new();
                loop {
                    let inflight = sent - done;
                    let open = Instant::now() < end;
                    if open && (inflight as usize) < window && (apart || k.whole().is_none()) {
                        out.clear();
                        while ((sent - done) as usize) < window {
                            let i = sent as usize + c;
                            let q = (i / topics) % queues;
                            let topic = if topics > 1 { format!("{}-{}", topic, i % topics) } else { topic.clone() };
                            let op = sent as i64;
                            let kp = |n: u64| if keys { format!("KEYS\\u0001k{}-{}\\u0002", c, n) } else { String::new() };
                            let (code, flag, props) = if batch == 1 {
                                (310, false, format!("{}UNIQ_KEY\\u00017F000001{:08X}{:016X}\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA", kp(sent), c, sent))
                            } else {
                                group.clear();
                                for j in 0..batch as u64 {
                                    let n = sent * batch as u64 + j;
                                    let k = if keys { format!("KEYS\u{1}k{}-{}\u{2}", c, n) } else { String::new() };
                                    entry(&mut group, &format!("{}UNIQ_KEY\u{1}7F000001{:08X}{:016X}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA", k, c, n), &body);
                                }
                                (320, true, String::new())
                            };
                            let h = format!("{{\"code\":{},\"extFields\":{{\"a\":\"bench\",\"b\":\"{}\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"{}\",\"f\":\"0\",\"g\":\"1763700000000\",\"h\":\"0\",\"i\":\"{}\",\"j\":\"0\",\"k\":\"false\",\"m\":\"{}\",\"n\":\"{}\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}}", code, topic, q, props, flag, broker, op);
                            out.extend(frame(&h, if batch == 1 { &body } else { &group }));
                            starts.insert(op, Instant::now());
                            sent += 1;
                        }
                        k.s.write_all(&out).unwrap();
                    }
                    if sent == done { if !open { break; } else { continue; } }
                    let (h, _, _) = k.next();
                    let op = num(h, "opaque").unwrap_or(-1);
                    if let Some(s) = starts.remove(&op) { lat.push(s.elapsed().as_micros() as u64); }
                    let code = num(h, "code").unwrap_or(-1);
                    if code != 0 { err += 1; *errs.entry(code).or_insert(0) += 1; if err == 1 { eprintln!("first error: {}", h); } } else { msgs += batch as u64; }
                    bytes += (size * batch) as u64;
                    done += 1;
                }
            } else if cmd == "pull" {
                let mut off = vec![0i64; queues];
                let mut idle = 0; // queues at their end, one after the other
                let group = if groups > 1 { format!("benchc-{}", c % groups) } else { "benchc".to_string() };
                let mut q = c % queues;
                while Instant::now() < end {
                    if idle == queues { off.fill(0); idle = 0; } // all is read: from the beginning again
                    let h = format!("{{\"code\":11,\"extFields\":{{\"consumerGroup\":\"{}\",\"topic\":\"{}\",\"queueId\":\"{}\",\"queueOffset\":\"{}\",\"maxMsgNums\":\"{}\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\",\"subscription\":\"*\",\"subVersion\":\"0\",\"expressionType\":\"TAG\",\"bname\":\"{}\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}}", group, topic, q, off[q], max, broker, done);
                    let s = Instant::now();
                    k.s.write_all(&frame(&h, b"")).unwrap();
                    let (h, b, _) = k.next();
                    lat.push(s.elapsed().as_micros() as u64);
                    let code = num(h, "code").unwrap_or(-1);
                    if done == 0 { eprintln!("first pull: {}", h); }
                    if code == 0 { idle = 0; let mut p = 0; while p + 4 <= b.len() { let n = u32::from_be_bytes(b[p..p + 4].try_into().unwrap()) as usize; msgs += 1; p += n; } bytes += b.len() as u64; }
                    else { idle += 1; *errs.entry(code).or_insert(0) += 1; }
                    off[q] = num(h, "nextBeginOffset").unwrap_or(off[q]);
                    done += 1;
                    if code != 0 { q = (q + 1) % queues; }
                }
            } else if cmd == "query" {
                let n: u64 = nkeys;
                let mut x: u64 = 88172645463325252 + c as u64;
                while Instant::now() < end {
                    x ^= x << 13; x ^= x >> 7; x ^= x << 17;
                    let h = format!("{{\"code\":12,\"extFields\":{{\"topic\":\"{}\",\"key\":\"k0-{}\",\"maxNum\":\"32\",\"beginTimestamp\":\"0\",\"endTimestamp\":\"9223372036854775807\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}}", topic, x % n, done);
                    let s = Instant::now();
                    k.s.write_all(&frame(&h, b"")).unwrap();
                    let (h, b, _) = k.next();
                    lat.push(s.elapsed().as_micros() as u64);
                    if done == 0 { eprintln!("first query: {} body {}", h, b.len()); }
                    let code = num(h, "code").unwrap_or(-1);
                    if code == 0 { msgs += 1 } else { err += 1; *errs.entry(code).or_insert(0) += 1; }
                    done += 1;
                }
            }
            (done, err, bytes, msgs, lat, errs)
        }));
    }
    let (mut done, mut err, mut bytes, mut msgs) = (0, 0, 0, 0);
    let mut lat = Vec::new();
    let mut errs: HashMap<i64, u64> = HashMap::new();
    for t in th { let r = t.join().unwrap(); done += r.0; err += r.1; bytes += r.2; msgs += r.3; lat.extend(r.4); for (k, v) in r.5 { *errs.entry(k).or_insert(0) += v; } }
    let el = t0.elapsed().as_secs_f64();
    println!("{} conns={} window={} size={} keys={}: {:.0} req/s {:.0} msg/s {:.1} MB/s err={} {:?} p50={}us p99={}us p99.9={}us", cmd, conns, window, size, keys, done as f64 / el, msgs as f64 / el, bytes as f64 / el / 1e6, err, errs, pct(&mut lat, 0.5), pct(&mut lat, 0.99), pct(&mut lat, 0.999));
}
