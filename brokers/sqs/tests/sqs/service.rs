//! A service that says what it is told to say.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What a request asked for, and its body.
pub(crate) type Asked = (String, String);
/// What comes back: a status, a header or none, and a body. Absent: the connection is closed.
pub(crate) type Answer = Option<(u16, &'static str, String)>;

/// A service on a port of its own.
pub(crate) struct Service {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Service {
    /// Answers every request as this function says.
    pub(crate) async fn start(
        answer: impl Fn(&str, &str) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, heard) = (Arc::new(answer), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, heard) = (Arc::clone(&answer), Arc::clone(&heard));
                tokio::spawn(async move { serve(stream, &*answer, &heard).await });
            }
        });
        Self { url, asked }
    }

    /// The requests of this kind.
    pub(crate) fn asked(&self, action: &str) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let named = asked.iter().filter(|(name, _)| name == action);
        named.map(|(_, body)| body.clone()).collect()
    }
}

/// An error as SQS says it.
pub(crate) fn error(status: u16, code: &str) -> Answer {
    let body = format!(r#"{{"__type":"com.amazonaws.sqs#{code}","message":"no"}}"#);
    Some((status, "x-none: 1", body))
}

/// A plain answer.
pub(crate) fn says(body: &str) -> Answer {
    Some((200, "x-none: 1", body.to_owned()))
}

async fn serve(
    mut stream: TcpStream,
    answer: &(dyn Fn(&str, &str) -> Answer + Send + Sync),
    heard: &Mutex<Vec<Asked>>,
) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let (action, body) = request(&mut stream, &mut read).await?;
        heard.lock().unwrap().push((action.clone(), body.clone()));
        let (status, header, body) = answer(&action, &body)?;
        let text = format!(
            "HTTP/1.1 {status} X\r\n{header}\r\ncontent-type: application/x-amz-json-1.0\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(text.as_bytes()).await.ok()?;
    }
}

/// The name of the action and the body of the next request.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<Asked> {
    loop {
        let text = String::from_utf8_lossy(read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let value = |name: &str| {
                head.lines().find_map(|line| {
                    let (found, value) = line.split_once(':')?;
                    found
                        .eq_ignore_ascii_case(name)
                        .then(|| value.trim().to_owned())
                })
            };
            let length: usize = value("content-length")?.parse().ok()?;
            if body.len() >= length {
                let action = value("x-amz-target")?.rsplit('.').next()?.to_owned();
                read.clear();
                return Some((action, body.to_owned()));
            }
        }
        let mut more = vec![0; 65_536];
        match stream.read(&mut more).await.ok()? {
            0 => return None,
            count => read.extend_from_slice(&more[..count]),
        }
    }
}
