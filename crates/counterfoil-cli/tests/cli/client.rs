//! HTTP as it goes over the wire: nothing between the test and the server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::home::Served;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The last word of a problem's type.
    #[track_caller]
    pub fn problem(&self) -> String {
        assert!(
            self.head.contains("content-type: application/problem+json"),
            "{self:?}"
        );
        let body = self.json();
        assert_eq!(body["status"], self.status);
        let kind = body["type"].as_str().unwrap();
        kind.strip_prefix("urn:counterfoil:problem:")
            .unwrap()
            .to_owned()
    }

    /// The ids of stored messages, and whether each was a duplicate.
    #[track_caller]
    pub fn stored(&self) -> Vec<(String, bool)> {
        let body = self.json();
        let list = body["messages"]
            .as_array()
            .unwrap_or_else(|| panic!("{self:?}"));
        let one = |m: &Value| {
            (
                m["id"].as_str().unwrap().into(),
                m["duplicate"].as_bool().unwrap(),
            )
        };
        list.iter().map(one).collect()
    }
}

impl Served {
    pub fn connect(&self) -> TcpStream {
        connect(&self.address)
    }

    /// Sends bytes and reads until the server closes.
    pub fn raw(&self, request: &[u8]) -> Answer {
        raw(&self.address, request)
    }

    pub fn request(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        ask(&self.address, method, path, headers, body)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    /// Posts messages.
    pub fn post(&self, body: impl AsRef<[u8]>) -> Answer {
        let headers = ["content-type: application/json"];
        self.request("POST", "/v1/messages", &headers, body.as_ref())
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

fn raw(address: &str, request: &[u8]) -> Answer {
    let mut stream = connect(address);
    // A server that has heard enough may close before everything is sent.
    let _ = stream.write_all(request);
    read(stream)
}

/// One request on one connection.
pub fn ask(address: &str, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|header| header.starts_with("host:")) {
        text.push_str(&format!("host: {address}\r\n"));
    }
    if !headers
        .iter()
        .any(|header| header.starts_with("content-length:"))
    {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    headers
        .iter()
        .for_each(|header| text.push_str(&format!("{header}\r\n")));
    raw(address, &[text.as_bytes(), b"\r\n", body].concat())
}

pub fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A reset after the answer is no news.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    Answer {
        status,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}
