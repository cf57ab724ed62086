//! The receiver: where relay processes deliver to, in the process of the test.
//!
//! # Promise
//! It answers as its [`Book`] says and keeps nothing else. [`Receiver::close`] makes it unreachable,
//! [`Receiver::open`] brings it back under the same address.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::book::Book;
use crate::wire::{self, Call, Reply, Verdict};

/// A listening receiver.
pub struct Receiver {
    /// What has arrived.
    pub book: Arc<Book>,
    address: SocketAddr,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Receiver {
    /// Starts to listen on a free port of this machine.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("no port to listen on");
        let address = listener.local_addr().expect("a listener has an address");
        let book = Arc::new(Book::new());
        let listening = Mutex::new(Some(tokio::spawn(accept(listener, Arc::clone(&book)))));
        Self {
            book,
            address,
            listening,
        }
    }

    /// Where relays find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nobody answers any more. Offers that are under way are not touched.
    pub async fn close(&self) {
        if let Some(task) = self.listening.lock().await.take() {
            task.abort();
            // The port is free when the task is gone.
            let _ = task.await;
        }
    }

    /// Somebody answers again.
    pub async fn open(&self) {
        let mut listening = self.listening.lock().await;
        if listening.is_none() {
            let listener = TcpListener::bind(self.address)
                .await
                .expect("the port was taken meanwhile");
            *listening = Some(tokio::spawn(accept(listener, Arc::clone(&self.book))));
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(task) = self.listening.get_mut().take() {
            task.abort();
        }
    }
}

async fn accept(listener: TcpListener, book: Arc<Book>) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&book)));
        }
    }
}

/// One connection, one call. Whatever goes wrong ends it, and the relay is left in doubt.
async fn serve(stream: TcpStream, book: Arc<Book>) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let Ok(Some(line)) = lines.next_line().await else {
        return;
    };
    let Ok(call) = serde_json::from_str::<Call>(&line) else {
        return;
    };
    let offers = join_all(
        call.items
            .into_iter()
            .map(|item| book.offer(&call.relay, item)),
    );
    let answers = tokio::select! {
        answers = offers => answers,
        // A relay says nothing before it has the answer: it is gone.
        () = hung_up(&mut lines) => return,
    };
    let (numbers, verdicts): (Vec<usize>, Vec<Verdict>) = answers.into_iter().unzip();
    if verdicts.contains(&Verdict::HungUp) {
        return book.cut(&numbers);
    }
    // Before it is written: whoever reads it may be faster than this book.
    book.replied(&numbers);
    let reply = wire::line(&Reply { verdicts });
    if write.write_all(reply.as_bytes()).await.is_err() {
        return;
    }
    if let Ok(Some(_)) = lines.next_line().await {
        book.seen(&numbers);
    }
}

async fn hung_up(lines: &mut Lines<BufReader<OwnedReadHalf>>) {
    while let Ok(Some(_)) = lines.next_line().await {}
}
