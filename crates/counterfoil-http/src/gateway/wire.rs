//! A connection to a service that counts what was sent.
//!
//! # Promise
//! [`Line::seal`] answers how many bytes have ever been handed to the socket, and from then on no
//! further byte is: a count that has not changed proves that the service has seen nothing.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// What both sides know: who sends, and who wants to know what was sent.
#[derive(Debug)]
pub(super) struct Line {
    half: OwnedWriteHalf,
    sent: Mutex<Sent>,
}

#[derive(Debug)]
struct Sent {
    bytes: u64,
    at: Instant,
    sealed: bool,
}

impl Line {
    fn stream(&self) -> &TcpStream {
        self.half.as_ref()
    }

    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes were sent.
    pub(super) fn count(&self) -> u64 {
        self.sent().bytes
    }

    /// When the last byte was sent.
    pub(super) fn last(&self) -> Instant {
        self.sent().at
    }

    /// Ends sending, and answers how many bytes were sent.
    pub(super) fn seal(&self) -> u64 {
        let mut sent = self.sent();
        sent.sealed = true;
        // It may be closed already, which is what is wanted.
        let _ = SockRef::from(self.stream()).shutdown(Shutdown::Both);
        sent.bytes
    }

    /// From now on every write fails, and nothing else shows it.
    #[cfg(test)]
    pub(super) fn mute(&self) {
        self.sent().sealed = true;
    }

    /// Whether the other side has neither closed the connection nor said anything. Asks the
    /// system itself: what has arrived is seen although nobody was woken yet.
    pub(super) fn is_quiet(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        matches!(
            SockRef::from(self.stream()).peek(&mut byte),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock
        )
    }
}

/// The end of a line that hyper reads and writes.
#[derive(Debug)]
pub(super) struct Wire {
    line: Arc<Line>,
    // Not through the line: a half of its own knows when there is nothing more to read, without
    // asking the system again.
    half: OwnedReadHalf,
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_read(cx, buffer)
    }
}

impl Wire {
    /// Both ends of a connection.
    pub(super) fn new(stream: TcpStream) -> (Arc<Line>, Self) {
        let (read, write) = stream.into_split();
        let line = Arc::new(Line {
            half: write,
            sent: Mutex::new(Sent {
                bytes: 0,
                at: Instant::now(),
                sealed: false,
            }),
        });
        let wire = Self {
            line: Arc::clone(&line),
            half: read,
        };
        (line, wire)
    }

    fn send(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.line.stream().poll_write_ready(cx))?;
            let mut sent = self.line.sent();
            if sent.sealed {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            match write(self.line.stream()) {
                Ok(n) => {
                    sent.bytes += n as u64;
                    sent.at = Instant::now();
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.send(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.send(cx, |stream| stream.try_write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = SockRef::from(self.line.stream()).shutdown(Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Arc<Line>, Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap());
        let (ours, theirs) = tokio::join!(ours, listener.accept());
        let (line, wire) = Wire::new(ours.unwrap());
        (line, wire, theirs.unwrap().0)
    }

    #[tokio::test]
    async fn what_is_sent_is_counted_and_nothing_is_sent_after_the_seal() {
        let (line, mut wire, mut theirs) = pair().await;

        wire.write_all(b"hello").await.unwrap();
        assert_eq!(line.count(), 5);
        assert_eq!(line.seal(), 5);
        assert!(wire.write_all(b"more").await.is_err());

        assert_eq!(line.count(), 5);
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hello");
    }

    #[tokio::test]
    async fn a_line_that_the_other_side_has_closed_is_not_quiet() {
        let (line, _wire, theirs) = pair().await;
        assert!(line.is_quiet());

        drop(theirs);

        let started = Instant::now();
        while line.is_quiet() {
            assert!(started.elapsed().as_secs() < 5);
            tokio::task::yield_now().await;
        }
        assert_eq!(line.count(), 0);
    }
}
