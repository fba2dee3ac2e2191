// Messages that are sent until one send of each was answered with success, whoever is master meanwhile: what a set owes.
// A line for each answer: connection, number, queue, offset. The body is "connection-number".
use crate::{frame, num};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub struct Plan {
    pub namesrv: String,
    pub topic: String,
    pub broker: String,
    pub conns: usize,
    pub window: usize,
    pub rate: f64, // messages per second, of all connections together
    pub queues: usize,
}

const CONNECT: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_millis(250); // after which it looks for another master
const PATIENCE: Duration = Duration::from_secs(3); // after which it dials again
const PAUSE: Duration = Duration::from_millis(5);

// An answer: header and body, and how many bytes they took; None: more is to come.
fn answer(buf: &[u8]) -> Option<(String, &[u8], usize)> {
    let total = 4 + u32::from_be_bytes(buf.get(..4)?.try_into().unwrap()) as usize;
    let head = (u32::from_be_bytes(buf.get(4..8)?.try_into().unwrap()) & 0xffffff) as usize;
    let all = buf.get(..total)?;
    Some((String::from_utf8_lossy(&all[8..8 + head]).to_string(), &all[8 + head..], total))
}

fn dial(addr: &str) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr.parse::<SocketAddr>().ok()?, CONNECT).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(SILENCE)).ok()?;
    Some(stream)
}

// The master, as a nameserver tells it.
fn master(plan: &Plan) -> Option<String> {
    let mut stream = dial(&plan.namesrv)?;
    let h = format!("{{\"code\":105,\"extFields\":{{\"topic\":\"{}\",\"acceptStandardJsonOnly\":\"true\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":1,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}}", plan.topic);
    stream.write_all(&frame(&h, b"")).ok()?;
    let (mut buf, mut piece) = (Vec::new(), [0u8; 65536]);
    loop {
        if let Some((_, body, _)) = answer(&buf) {
            let text = String::from_utf8_lossy(body).to_string();
            let at = text.find("\"0\":\"")? + 5;
            return Some(text[at..].split('"').next()?.to_string());
        }
        let n = stream.read(&mut piece).ok()?;
        if n == 0 { return None; }
        buf.extend(&piece[..n]);
    }
}

fn request(plan: &Plan, c: usize, number: u64, opaque: i64) -> Vec<u8> {
    let queue = (number as usize + c) % plan.queues;
    let h = format!("{{\"code\":310,\"extFields\":{{\"a\":\"ledger\",\"b\":\"{}\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"{}\",\"f\":\"0\",\"g\":\"1763700000000\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F000002{:08X}{:016X}\\u0002WAIT\\u0001true\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\",\"n\":\"{}\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}}", plan.topic, queue, c, number, plan.broker, opaque);
    frame(&h, format!("{}-{}", c, number).as_bytes())
}

struct Sender { c: usize, next: u64, again: VecDeque<u64>, opaque: i64, due: Instant, gap: Duration }

impl Sender {
    // One connection, until it is over; what was under way is sent again by the next one.
    fn converse(&mut self, plan: &Plan, addr: &str) -> Option<()> {
        let mut stream = dial(addr)?;
        let mut open: HashMap<i64, u64> = HashMap::new();
        let done = self.exchange(plan, addr, &mut stream, &mut open);
        self.again.extend(open.into_values());
        done
    }

    fn exchange(&mut self, plan: &Plan, addr: &str, stream: &mut TcpStream, open: &mut HashMap<i64, u64>) -> Option<()> {
        let (mut buf, mut piece) = (Vec::new(), vec![0u8; 65536]);
        let mut heard = Instant::now();
        loop {
            let now = Instant::now();
            let mut out = Vec::new();
            while open.len() < plan.window && self.due <= now {
                let number = self.again.pop_front().unwrap_or_else(|| { self.next += 1; self.next - 1 });
                self.opaque += 1;
                out.extend(request(plan, self.c, number, self.opaque));
                open.insert(self.opaque, number);
                self.due = (self.due + self.gap).max(now - self.gap * plan.window as u32);
            }
            if !out.is_empty() { stream.write_all(&out).ok()?; }
            if open.is_empty() {
                heard = now;
                std::thread::sleep(self.due.saturating_duration_since(now));
                continue;
            }
            match stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(n) => { heard = Instant::now(); buf.extend(&piece[..n]); }
                Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::TimedOut => {
                    if heard.elapsed() > PATIENCE || master(plan).is_some_and(|one| one != addr) { return None; }
                }
                Err(_) => return None,
            }
            let mut at = 0;
            let mut refused = false;
            let mut lines = String::new();
            while let Some((h, _, size)) = answer(&buf[at..]) {
                at += size;
                let Some(number) = num(&h, "opaque").and_then(|opaque| open.remove(&opaque)) else { continue };
                match (num(&h, "code"), num(&h, "queueId"), num(&h, "queueOffset")) {
                    (Some(0), Some(queue), Some(offset)) => lines += &format!("{} {} {} {}\n", self.c, number, queue, offset),
                    _ => { self.again.push_back(number); refused = true; }
                }
            }
            buf.drain(..at);
            if !lines.is_empty() {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(lines.as_bytes()).ok()?;
                stdout.flush().ok()?;
            }
            if refused { std::thread::sleep(PAUSE); }
        }
    }
}

pub fn run(plan: Plan) {
    let gap = Duration::from_secs_f64(plan.conns as f64 / plan.rate);
    std::thread::scope(|threads| {
        for c in 0..plan.conns {
            let plan = &plan;
            threads.spawn(move || {
                let mut sender = Sender { c, next: 0, again: VecDeque::new(), opaque: 0, due: Instant::now(), gap };
                loop {
                    if let Some(addr) = master(plan) { sender.converse(plan, &addr); }
                    std::thread::sleep(PAUSE);
                }
            });
        }
    });
}
