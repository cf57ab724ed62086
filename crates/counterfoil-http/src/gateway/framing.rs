//! Requests whose end two readers could see in different places.
//!
//! # Promise
//! Of an HTTP/1 connection every head is seen before hyper sees it. One with both a length and an
//! encoding, or with two lengths, is noticed: hyper would choose one of them, and whoever is behind
//! or before us might choose the other. So is a length, an encoding or the size of a chunk that is
//! not understood here, or whose line is longer than anybody needs. From such a request on nothing
//! on the connection is believed, and if its body has begun already, the body fails. It takes a few
//! bytes of memory, however large the requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest line of which the value matters: a length, an encoding, the size of a chunk.
const LINE: usize = 256;

/// Which requests of a connection are ambiguous.
#[derive(Debug, Clone, Default)]
pub(super) struct Verdicts(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    /// The first one, counted from zero; nothing after it is believed either.
    ambiguous_from: AtomicU64,
    served: AtomicU64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            ambiguous_from: AtomicU64::new(u64::MAX),
            served: AtomicU64::new(0),
        }
    }
}

impl Verdicts {
    /// Counts a request that hyper hands out.
    pub(super) fn next(&self) -> Verdict {
        Verdict {
            all: self.clone(),
            n: self.0.served.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn ambiguous(&self, n: u64) {
        self.0.ambiguous_from.fetch_min(n, Ordering::Release);
    }
}

/// What is known about one request so far.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    all: Verdicts,
    n: u64,
}

impl Verdict {
    /// Whether where it ends is beyond doubt. In the middle of a body this may change.
    pub(super) fn is_clear(&self) -> bool {
        self.n < self.all.0.ambiguous_from.load(Ordering::Acquire)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a head; whether its first line was seen.
    Head { begun: bool },
    /// So many bytes of a body are still to come.
    Body(u64),
    /// In the line that says how long a chunk is.
    ChunkSize,
    /// In a chunk, and the line end behind it.
    Chunk(u64),
    /// Behind the last chunk.
    Trailers,
    /// Not HTTP/1: hyper decides. Or not understood: nothing is believed any more.
    Aside,
}

/// Follows the bytes of one connection.
#[derive(Debug)]
pub(super) struct Framing {
    place: Place,
    /// The beginning of a line that did not come whole.
    line: Vec<u8>,
    /// Whether the line is longer than that.
    cut: bool,
    lengths: u32,
    length: Option<u64>,
    encodings: u32,
    /// Whether a line that matters is too long.
    overlong: bool,
    heads: u64,
    verdicts: Verdicts,
}

impl Framing {
    pub(super) fn new(verdicts: Verdicts) -> Self {
        Self {
            place: Place::Head { begun: false },
            line: Vec::new(),
            cut: false,
            lengths: 0,
            length: None,
            encodings: 0,
            overlong: false,
            heads: 0,
            verdicts,
        }
    }

    /// Takes note of bytes that were read.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.place {
                Place::Aside => return,
                Place::Body(left) | Place::Chunk(left) => self.skip(left, bytes),
                _ => self.take_line(bytes),
            };
        }
    }

    fn skip<'a>(&mut self, left: u64, bytes: &'a [u8]) -> &'a [u8] {
        let here = usize::try_from(left).map_or(bytes.len(), |n| n.min(bytes.len()));
        let left = left - here as u64;
        self.place = match (self.place, left) {
            (Place::Body(_), 0) => Place::Head { begun: false },
            (Place::Body(_), n) => Place::Body(n),
            (_, 0) => Place::ChunkSize,
            (_, n) => Place::Chunk(n),
        };
        &bytes[here..]
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr::memchr(b'\n', bytes);
        let here = &bytes[..end.unwrap_or(bytes.len())];
        // Most lines come whole: no copy is needed.
        if let (Some(end), true, true) = (end, self.line.is_empty(), here.len() <= LINE) {
            self.line_ended(here.strip_suffix(b"\r").unwrap_or(here));
            return &bytes[end + 1..];
        }
        let room = LINE.saturating_sub(self.line.len());
        self.line.extend_from_slice(&here[..here.len().min(room)]);
        self.cut |= here.len() > room;
        let Some(end) = end else { return &[] };
        let line = std::mem::take(&mut self.line);
        self.line_ended(line.strip_suffix(b"\r").unwrap_or(&line));
        self.line = line;
        self.line.clear();
        self.cut = false;
        &bytes[end + 1..]
    }

    fn line_ended(&mut self, line: &[u8]) {
        match self.place {
            Place::Head { begun: false } if line.is_empty() => {}
            Place::Head { begun: false } if line.starts_with(b"PRI * HTTP/2") => {
                self.place = Place::Aside;
            }
            Place::Head { begun: false } => self.place = Place::Head { begun: true },
            Place::Head { begun: true } if line.is_empty() => self.head_ended(),
            Place::Head { begun: true } => self.field(line),
            Place::ChunkSize => self.place = self.chunk(line),
            Place::Trailers if line.is_empty() => self.place = Place::Head { begun: false },
            _ => {}
        }
    }

    fn field(&mut self, line: &[u8]) {
        // Those that matter begin so.
        let first = line.trim_ascii_start().first();
        if !matches!(first, Some(b'c' | b'C' | b't' | b'T')) {
            return;
        }
        let colon = memchr::memchr(b':', line);
        let (name, value) = match colon {
            Some(colon) => (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii()),
            // The colon may be behind the cut.
            None if self.cut => (line.trim_ascii(), &[][..]),
            None => return,
        };
        if name.eq_ignore_ascii_case(b"content-length") {
            self.lengths += 1;
            self.length = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
            self.overlong |= self.cut;
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.encodings += 1;
            self.overlong |= self.cut;
        }
    }

    fn head_ended(&mut self) {
        let odd = self.encodings == 0 && self.lengths > 0 && self.length.is_none();
        if self.lengths + self.encodings > 1 || self.overlong || odd {
            self.verdicts.ambiguous(self.heads);
        }
        self.place = match (self.encodings, self.lengths, self.length) {
            (0, 0, _) | (0, _, Some(0)) => Place::Head { begun: false },
            (0, _, Some(length)) => Place::Body(length),
            (0, _, None) => Place::Aside,
            _ => Place::ChunkSize,
        };
        self.heads += 1;
        (self.lengths, self.encodings, self.length) = (0, 0, None);
        self.overlong = false;
    }

    /// What follows the line that says how long a chunk is.
    fn chunk(&self, line: &[u8]) -> Place {
        let digits = line.split(|b| *b == b';').next().unwrap_or_default();
        let digits = std::str::from_utf8(digits.trim_ascii()).unwrap_or_default();
        let size = u64::from_str_radix(digits, 16).ok();
        // With the line end.
        match size.and_then(|size| Some((size, size.checked_add(2)?))) {
            Some((0, _)) if !self.cut => Place::Trailers,
            Some((_, whole)) if !self.cut => Place::Chunk(whole),
            _ => {
                // Its head has ended before.
                self.verdicts.ambiguous(self.heads.saturating_sub(1));
                Place::Aside
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the requests are clear, read whole and byte by byte.
    fn clear(text: &str, requests: usize) -> Vec<bool> {
        let verdicts = |step: usize| -> Vec<bool> {
            let verdicts = Verdicts::default();
            let mut framing = Framing::new(verdicts.clone());
            for piece in text.as_bytes().chunks(step) {
                framing.read(piece);
            }
            (0..requests).map(|_| verdicts.next().is_clear()).collect()
        };
        assert_eq!(verdicts(1), verdicts(text.len()));
        assert_eq!(verdicts(7), verdicts(text.len()));
        verdicts(1)
    }

    #[test]
    fn a_length_and_an_encoding_are_noticed_in_either_order() {
        let (te, cl) = ("Transfer-Encoding: chunked\r\n", "Content-Length: 4\r\n");
        for head in [[te, cl].concat(), [cl, te].concat(), [cl, cl].concat()] {
            let text = format!("POST / HTTP/1.1\r\n{head}\r\n0\r\n\r\n");
            assert_eq!(clear(&text, 1), [false], "{text}");
        }
    }

    #[test]
    fn what_stands_in_a_body_is_not_a_head() {
        let body = "a: b\r\n\r\nX / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
        let fixed = format!(
            "POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let chunked = format!(
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{:x};x=y\r\n{body}\r\n0\r\nt: 1\r\n\r\n",
            body.len()
        );
        let twice = "GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n";

        assert_eq!(
            clear(&[&fixed, &*chunked, &fixed, twice].concat(), 5),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn a_line_that_matters_is_short_or_nothing_is_believed_any_more() {
        let (zeros, spaces) = ("0".repeat(300), " ".repeat(300));
        let get = "GET / HTTP/1.1\r\n\r\n";
        let post = |head: &str| format!("POST / HTTP/1.1\r\n{head}\r\n");
        let chunked = post("transfer-encoding: chunked\r\n");
        for odd in [
            post(&format!("Content-Length:{spaces}0\r\n")),
            post(&format!("Content-Length{spaces}: 0\r\n")),
            post(&format!("content-length: {zeros}\r\n")),
            post("content-length: many\r\n"),
            post(&format!("Transfer-Encoding:{spaces}chunked\r\n")) + "0\r\n\r\n",
            format!("{chunked}{zeros}\r\n\r\n"),
            format!("{chunked}2\r\nhi\r\n0;{spaces}\r\n\r\n"),
            format!("{chunked}ffffffffffffffff\r\n"),
            format!("{chunked}many\r\n"),
        ] {
            let text = [get, &odd, get].concat();
            assert_eq!(clear(&text, 3), [true, false, false], "{text}");
        }
        let long = post(&format!("cookie: {zeros}\r\ntoken: {zeros}\r\n"));
        let fits = post(&format!("content-length: {}\r\n", "0".repeat(200)));
        assert_eq!(clear(&[&long, &*fits, get].concat(), 3), [true; 3]);
    }

    #[test]
    fn a_request_that_is_under_way_is_not_believed_any_more_when_a_chunk_is_odd() {
        let verdicts = Verdicts::default();
        let mut framing = Framing::new(verdicts.clone());
        framing.read(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n");
        let first = verdicts.next();
        assert!(first.is_clear());

        framing.read(&[b'0'; 300]);
        assert!(first.is_clear(), "it may still be short of its end");
        framing.read(b"\r\n\r\n");

        assert!(!first.is_clear());
        assert!(!verdicts.next().is_clear());
    }

    #[test]
    fn http_2_is_left_alone() {
        assert_eq!(
            clear("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ncontent-length: 1\r\n", 2),
            [true, true]
        );
    }
}
