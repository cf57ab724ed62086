//! A webhook receiver: remembers what came and answers as it is told.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use crate::home::until;

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    pub id: String,
    pub event: String,
    pub head: String,
    pub body: String,
}

/// What to answer: a status, or wait.
type Rule = Box<dyn Fn(&Request) -> u16 + Send>;

#[derive(Clone)]
pub struct Receiver {
    pub url: String,
    shared: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    requests: Vec<Request>,
    rule: Rule,
    held: bool,
}

impl Receiver {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let state = State {
            requests: Vec::new(),
            rule: Box::new(|_| 204),
            held: false,
        };
        let receiver = Self {
            url,
            shared: Arc::new((Mutex::new(state), Condvar::new())),
        };
        let ours = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let ours = ours.clone();
                std::thread::spawn(move || while ours.answer(&stream).is_some() {});
            }
        });
        receiver
    }

    /// A destination section for this receiver.
    pub fn section(&self, name: &str, more: &str) -> String {
        let url = &self.url;
        // Tests do not wait for hours.
        let quick = match ["max-attempts", "backoff-", "retry-waits"]
            .iter()
            .any(|key| more.contains(key))
        {
            true => "",
            false => "backoff-base = \"1s\"\n",
        };
        format!(
            "[destination.{name}]\ntype = \"webhook\"\nurl = \"{url}\"\nunsigned = true\n\
             allow-private = true\n{quick}{more}\n"
        )
    }

    /// From now on, answers by this rule.
    pub fn answer_by(&self, rule: impl Fn(&Request) -> u16 + Send + 'static) {
        self.shared.0.lock().unwrap().rule = Box::new(rule);
    }

    /// From now on, answers nothing until [`Receiver::go_on`].
    pub fn hold(&self) {
        self.shared.0.lock().unwrap().held = true;
    }

    pub fn go_on(&self) {
        self.shared.0.lock().unwrap().held = false;
        self.shared.1.notify_all();
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.0.lock().unwrap().requests.clone()
    }

    /// Waits until a message has come, and gives its first request.
    #[track_caller]
    pub fn wait_for(&self, id: &str) -> Request {
        until("the webhook", || {
            self.requests().into_iter().find(|request| request.id == id)
        })
    }

    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let request = read(stream)?;
        let (lock, changed) = &*self.shared;
        let mut state = lock.lock().unwrap();
        state.requests.push(request.clone());
        while state.held {
            state = changed.wait(state).unwrap();
        }
        let status = (state.rule)(&request);
        drop(state);
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
        let mut stream = stream;
        stream.write_all(answer.as_bytes()).ok()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let field = |name: &str| {
        let line = head
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_default().to_owned()
    };
    let mut body = vec![0; field("content-length").parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        id: field("webhook-id"),
        event: field("counterfoil-event-type"),
        body: String::from_utf8(body).unwrap(),
        head,
    })
}
