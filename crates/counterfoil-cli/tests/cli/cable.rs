//! A connection to a database that can be cut.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Forwards connections to a server until it is cut.
pub struct Cable {
    /// The URL of the database behind the cable.
    pub url: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: bool,
    streams: Vec<TcpStream>,
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
        let state = Arc::new(Mutex::new(State::default()));
        let url = url.replacen(&server, &ours, 1);
        let cable = Self {
            url,
            state: Arc::clone(&state),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut state = state.lock().unwrap();
                if !state.cut {
                    let upstream = TcpStream::connect(&server).unwrap();
                    state.join(&stream, &upstream);
                    state.join(&upstream, &stream);
                }
            }
        });
        cable
    }

    /// Cuts every connection and takes no new one, or takes them again.
    pub fn cut(&self, cut: bool) {
        let mut state = self.state.lock().unwrap();
        state.cut = cut;
        for stream in state.streams.drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn join(&mut self, from: &TcpStream, to: &TcpStream) {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        self.streams.push(from.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
