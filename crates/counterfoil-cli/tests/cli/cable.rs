//! A connection to a database that can be cut, and that can come to a halt at a word.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use crate::home::PATIENCE;

/// Forwards connections to a server until it is cut.
#[derive(Clone)]
pub struct Cable {
    /// The URL of the database behind the cable.
    pub url: String,
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    cut: bool,
    streams: Vec<TcpStream>,
    /// What brings everything to a halt, and whether it still arrives itself.
    trap: Option<(Vec<u8>, Arrives)>,
    halted: bool,
}

/// Whether what brings a cable to a halt still reaches the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrives {
    /// Only its answer is missing.
    Yes,
    /// It is lost with the cable.
    Never,
}

impl Cable {
    /// A cable to the server in this URL, `scheme://[user@]host:port/…`.
    pub fn to(url: &str) -> Self {
        let authority = url
            .split("://")
            .nth(1)
            .unwrap()
            .split(['/', '?'])
            .next()
            .unwrap();
        let server = authority.rsplit('@').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = listener.local_addr().unwrap().to_string();
        let shared = Arc::<(Mutex<State>, Condvar)>::default();
        let url = url.replacen(&server, &ours, 1);
        let cable = Self {
            url,
            shared: Arc::clone(&shared),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut state = shared.0.lock().unwrap();
                if !state.cut {
                    let upstream = TcpStream::connect(&server).unwrap();
                    state.join(&shared, &stream, &upstream, true);
                    state.join(&shared, &upstream, &stream, false);
                }
            }
        });
        cable
    }

    /// Cuts every connection and takes no new one, or takes them again.
    pub fn cut(&self, cut: bool) {
        let mut state = self.shared.0.lock().unwrap();
        state.cut = cut;
        for stream in state.streams.drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.1.notify_all();
    }

    /// Nothing passes any more, in either direction, from the moment that this is sent to the
    /// database.
    pub fn halt_at(&self, word: &str, arrives: Arrives) {
        self.shared.0.lock().unwrap().trap = Some((word.as_bytes().to_vec(), arrives));
    }

    /// Waits until the word was sent.
    #[track_caller]
    pub fn halted(&self) {
        let state = self.shared.0.lock().unwrap();
        let waited = self
            .shared
            .1
            .wait_timeout_while(state, PATIENCE, |s| !s.halted);
        assert!(waited.unwrap().0.halted, "the word was never sent");
    }
}

impl State {
    fn join(
        &mut self,
        shared: &Arc<(Mutex<State>, Condvar)>,
        from: &TcpStream,
        to: &TcpStream,
        outward: bool,
    ) {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        self.streams.push(from.try_clone().unwrap());
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            let _ = pump(&shared, &from, &to, outward);
            let _ = to.shutdown(Shutdown::Both);
        });
    }

    /// Whether this is what everything is to halt at.
    fn sprung(&mut self, sent: &[u8]) -> Option<Arrives> {
        let (word, arrives) = self.trap.as_ref()?;
        let arrives = *arrives;
        sent.windows(word.len()).any(|part| part == word).then(|| {
            (self.trap, self.halted) = (None, true);
            arrives
        })
    }
}

fn pump(
    (state, changed): &(Mutex<State>, Condvar),
    mut from: &TcpStream,
    mut to: &TcpStream,
    outward: bool,
) -> std::io::Result<()> {
    // A statement of these tests is not larger than this, so that a word is not cut in two.
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let n = from.read(&mut bytes)?;
        let mut held = state.lock().unwrap();
        let sprung = match outward {
            true => held.sprung(&bytes[..n]),
            false => None,
        };
        changed.notify_all();
        if sprung != Some(Arrives::Yes) {
            held = changed.wait_while(held, |s| s.halted && !s.cut).unwrap();
        }
        // What was held back is lost with the cable.
        if n == 0 || held.cut || (held.halted && sprung != Some(Arrives::Yes)) {
            return Ok(());
        }
        drop(held);
        to.write_all(&bytes[..n])?;
    }
}
