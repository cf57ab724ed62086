//! A connection that gives up on a reader who does not read.
//!
//! # Promise
//! A write that makes no progress for [`PATIENCE`], or too little ([`super::pace`]), ends the connection.
//! Reading is not bounded here: the server bounds how long a request's head and its body may take.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::pace::Pace;

/// How long a reader may not read.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A TCP connection whose writes make progress or fail: something within 30 s, and 240 bytes a second over
/// 10 s in which the reader is waited for.
#[derive(Debug)]
pub struct Patient {
    stream: TcpStream,
    stuck: Option<Pin<Box<Sleep>>>,
    pace: Pace,
}

impl Patient {
    /// A connection that was accepted.
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            stuck: None,
            pace: Pace::default(),
        }
    }

    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.stuck = None;
            return progress;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        if stuck.as_mut().poll(cx).is_pending() {
            ready!(self.pace.poll_slow(cx));
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn wrote(&mut self, progress: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = progress {
            self.pace.moved(*bytes);
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(&progress);
        self.bounded(cx, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.wrote(&progress);
        self.bounded(cx, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_flush(cx);
        self.bounded(cx, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bounded(cx, progress)
    }
}
