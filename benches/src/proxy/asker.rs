//! Asks as fast as it is answered, and costs little itself.
//!
//! # Promise
//! One thread, a fixed number of connections that stay open, on each of them one request at a time.
//! Every answer is read to its end and must be a success; whether it was a replay is looked at now
//! and then.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::endpoint::Load;

/// One answer in so many is looked at closely.
const CLOSELY: u64 = 64;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// A GET of this path.
    Get(&'static str),
    /// A POST with a small body to this path.
    Post(&'static str),
    /// The same with keys that nobody has used before; the number is the run's.
    First(&'static str, u64),
    /// The same with so many keys in turn, which have been answered before.
    Again(&'static str, u64),
}

const BODY: &str = r#"{"item":"book","amount":1,"price":"12.50"}"#;

impl Ask {
    /// Writes the request with this number.
    pub fn write(self, number: u64, out: &mut Vec<u8>) -> io::Result<()> {
        use std::io::Write as _;
        out.clear();
        let length = BODY.len();
        let (path, key) = match self {
            Ask::Get(path) => {
                return write!(
                    out,
                    "GET {path} HTTP/1.1\r\nhost: shop.example\r\naccept: */*\r\n\r\n"
                );
            }
            Ask::Post(path) => (path, None),
            Ask::First(path, run) => (path, Some((run, number))),
            Ask::Again(path, keys) => (path, Some((0, number % keys))),
        };
        write!(
            out,
            "POST {path} HTTP/1.1\r\nhost: shop.example\r\naccept: */*\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n"
        )?;
        if let Some((run, number)) = key {
            write!(out, "idempotency-key: order-{run:x}-{number:08}\r\n")?;
        }
        write!(out, "\r\n{BODY}")
    }

    /// Whether answers say that they are replays.
    fn replayed(self) -> bool {
        matches!(self, Ask::Again(..))
    }
}

/// Asks for a while; the connections are made before.
pub fn ask(
    address: SocketAddr,
    ask: Ask,
    connections: usize,
    time: Duration,
) -> anyhow::Result<Load> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async move {
        let mut lines = Vec::with_capacity(connections);
        for _ in 0..connections {
            lines.push(Line::connect(address).await?);
        }
        let numbers = Rc::new(Cell::new(0_u64));
        let begun = Instant::now();
        let workers: Vec<_> = lines
            .into_iter()
            .map(|line| {
                let numbers = Rc::clone(&numbers);
                tokio::task::spawn_local(line.work(ask, numbers, begun, time))
            })
            .collect();
        let mut times = Vec::new();
        for worker in workers {
            times.extend(worker.await??);
        }
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let rps = times.len() as f64 / begun.elapsed().as_secs_f64();
        let p99_ms = crate::percentile(&mut times, 0.99);
        Ok(Load { rps, p99_ms })
    })
}

/// One connection.
pub struct Line {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Line {
    /// A new connection.
    pub async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            request: Vec::with_capacity(512),
            answer: Vec::with_capacity(2048),
        })
    }

    async fn work(
        mut self,
        ask: Ask,
        numbers: Rc<Cell<u64>>,
        begun: Instant,
        time: Duration,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(4096);
        let mut sent = Instant::now();
        while sent.duration_since(begun) < time {
            let number = numbers.replace(numbers.get() + 1);
            self.ask(ask, number).await?;
            let now = Instant::now();
            times.push(now.duration_since(sent));
            sent = now;
        }
        Ok(times)
    }

    /// One request and its whole answer, which is a replay or not as it should be.
    pub async fn ask(&mut self, ask: Ask, number: u64) -> anyhow::Result<()> {
        let head = self.begin(ask, number).await?;
        if number.is_multiple_of(CLOSELY) {
            let replayed = text(head).contains("idempotent-replayed: true");
            anyhow::ensure!(replayed == ask.replayed(), "{ask:?}: {}", text(head));
        }
        Ok(())
    }

    /// One request, whether it is the first with its key or not. The head of its answer.
    pub async fn begin(&mut self, ask: Ask, number: u64) -> anyhow::Result<&[u8]> {
        ask.write(number, &mut self.request)?;
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        let head = loop {
            let read = self.stream.read_buf(&mut self.answer).await?;
            anyhow::ensure!(read > 0, "{ask:?}: the connection was closed");
            if let Some(head) = complete(&self.answer)? {
                break &self.answer[..head];
            }
        };
        anyhow::ensure!(head.get(9) == Some(&b'2'), "{ask:?}: {}", text(head));
        Ok(head)
    }
}

fn text(head: &[u8]) -> String {
    String::from_utf8_lossy(head).to_ascii_lowercase()
}

/// The length of the head, once head and body are there.
fn complete(answer: &[u8]) -> anyhow::Result<Option<usize>> {
    let (mut at, mut length) = (0, None);
    // Line by line: a length that stands in the body is none.
    while let Some(end) = answer[at..].iter().position(|b| *b == b'\n') {
        let line = answer[at..at + end].trim_ascii_end();
        at += end + 1;
        if line.is_empty() {
            let length: usize =
                length.ok_or_else(|| anyhow::anyhow!("no length: {}", text(&answer[..at])))?;
            return Ok((answer.len() >= at + length).then_some(at));
        }
        const NAME: &[u8] = b"content-length:";
        if line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME) {
            let value = std::str::from_utf8(line[NAME.len()..].trim_ascii())?;
            length = Some(value.parse()?);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_with_its_last_byte_and_not_before() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\na\r\n\r\n";
        for end in 0..answer.len() {
            assert_eq!(complete(&answer[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(complete(answer).unwrap(), Some(answer.len() - 5));
        assert!(complete(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn keys_are_new_or_come_again() {
        let written = |ask: Ask, number| {
            let mut out = Vec::new();
            ask.write(number, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let (first, again) = (Ask::First("/a", 7), Ask::Again("/a", 10));

        assert_ne!(written(first, 1), written(first, 11));
        assert_ne!(written(first, 1), written(Ask::First("/a", 8), 1));
        assert_eq!(written(again, 1), written(again, 11));
        assert!(written(Ask::Post("/a"), 1).ends_with(BODY));
        assert!(!written(Ask::Post("/a"), 1).contains("idempotency-key"));
    }
}
